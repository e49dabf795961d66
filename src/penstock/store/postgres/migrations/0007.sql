-- Room on each page of dedup for the row that marks a node's last commit.

ALTER TABLE penstock.dedup SET (fillfactor = 90);
