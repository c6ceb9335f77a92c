"""FlashInfer Trace: our ops as definitions that others' tools can judge, and others' definitions as ops for our judge."""
