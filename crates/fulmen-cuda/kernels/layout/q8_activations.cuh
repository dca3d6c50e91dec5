// The layout of the structs and constants that src/kernels/q8_activations.rs shares with
// q8_activations.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(Q8_GROUP_ELEMENTS, 512);
ASSERT_CONSTANT(Q8_GROUP_BYTES, 768);
