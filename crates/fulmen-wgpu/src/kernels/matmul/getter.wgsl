//! `get_NAME(i)` alone, for kernels whose text is not made of the matmul files: an elementwise load.
#include "matmul/element.wgsl"
#expand getter(name, form, width)
