"""FlashInfer Trace: our ops as definitions that other tools can judge, and others' definitions as our exams."""
