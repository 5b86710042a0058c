"""The parts of `engine_bench.py`: each file defines and measures one promise of the engine."""
