"""The state machine: no I/O, no clock, no randomness; time comes in as an argument. It knows `model` and `batch` only.

- `lane/`: one ordered log and the groups on it. Import `Lane`, `Sealed`, `Group`.
- `group/`: one consumer group on a lane. Import `WorkGroup`, `StreamGroup`, `Settings`, `settings_of`, `Entry`.
- `routing/`: from an exchange and a key to queues. Import `Router`.
- `filters/`: SQL conditions on metadata. Import `parse`, `Filter`.
- `log`: heads of batches in memory, and `Missing`, which asks the node to feed more.
- `dedup` (with `seen`): ids published before. `heaps` is for inside only.

A command changes a lane in memory and marks it; `Lane.seal` gathers the changes for one commit (`node/commit/`).
Invariants are assertions: cheap ones where they could break, whole-state ones in a `check` method of each class.
"""
