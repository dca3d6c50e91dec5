//! Fulmen's wgpu backend.
