// Softplus, log(1 + e^x), as the gated delta rule uses it.
#pragma once
#include "types.cuh"

DEVICE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
