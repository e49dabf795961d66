"""Commands for a source checkout: `penstock test`, and finding the checkout."""
