"""The parts of `engine_bench.py`: each file measures one promise of the engine and says how."""
