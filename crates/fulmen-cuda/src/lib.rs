//! Fulmen's CUDA backend.
