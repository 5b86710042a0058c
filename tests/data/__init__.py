"""What tests read and write: tiny checkpoints, and prose."""
