// Element-wise ops of one or two operands: out[i] = op(a[i], b[i], scalar). Four elements per thread, as one
// float4 where all addresses are 16-byte aligned; 256 threads per block. Launched by
// src/kernels/elementwise.rs.
//
// Layouts: all operands [n] f32; the output may be an operand, since an element is read and written by the
// same thread.
// Preconditions: none.
// Bound: memory bandwidth. Not measured.
#include "common.cuh"
#include "silu.cuh"

// Mirrored by `ElementwiseArgs` in src/kernels/elementwise.rs.
struct ElementwiseArgs {
    const float* a;
    const float* b;  // binary ops only
    float* out;
    u64 n;
    float scalar;
    u32 vectorized;  // all addresses are multiples of 16 bytes
};
#include "layout/elementwise.cuh"

struct Add {
    static DEVICE float of(float a, float b, float) { return a + b; }
};
struct Mul {
    static DEVICE float of(float a, float b, float) { return a * b; }
};
struct SwiGlu {
    static DEVICE float of(float a, float b, float) { return silu_of(a) * b; }
};
struct Silu {
    static DEVICE float of(float x, float, float) { return silu_of(x); }
};
// x · Φ(x), by the complementary error function, which stays accurate far below 0.
struct Gelu {
    static DEVICE float of(float x, float, float) {
        return x == -INFINITE ? 0.0f : x * 0.5f * erfcf(-x * 0.70710678118654752f);
    }
};
// The tanh formula as x · sigmoid(2u).
struct GeluTanh {
    static DEVICE float of(float x, float, float) {
        float u = 0.79788456080286536f * (x + 0.044715f * x * x * x);
        return x == -INFINITE ? 0.0f : x * sigmoid(2.0f * u);
    }
};
struct GeGlu {
    static DEVICE float of(float a, float b, float) { return GeluTanh::of(a, a, 0.0f) * b; }
};
// A comparison, because fmaxf would lose NaN.
struct Relu2 {
    static DEVICE float of(float x, float, float) { return x < 0.0f ? 0.0f : x * x; }
};
struct Scale {
    static DEVICE float of(float x, float, float scalar) { return x * scalar; }
};
struct SoftCap {
    static DEVICE float of(float x, float, float scalar) { return scalar * tanhf(x / scalar); }
};

template <typename Op, bool BINARY>
DEVICE void elementwise(const ElementwiseArgs& args) {
    pdl_begin();
    u64 at = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (at >= args.n) return;
    if (args.vectorized && at + 4 <= args.n) {
        float4 a = *(const float4*)(args.a + at), b = a;
        if (BINARY) b = *(const float4*)(args.b + at);
        float4 out;
        out.x = Op::of(a.x, b.x, args.scalar);
        out.y = Op::of(a.y, b.y, args.scalar);
        out.z = Op::of(a.z, b.z, args.scalar);
        out.w = Op::of(a.w, b.w, args.scalar);
        *(float4*)(args.out + at) = out;
        return;
    }
    for (u64 i = at; i < at + 4 && i < args.n; i++) {
        float a = args.a[i];
        args.out[i] = Op::of(a, BINARY ? args.b[i] : a, args.scalar);
    }
}

#define KERNEL(name, Op, BINARY)                                                                           \
    extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ ElementwiseArgs args) { \
        elementwise<Op, BINARY>(args);                                                                     \
    }

KERNEL(add, Add, true)
KERNEL(mul, Mul, true)
KERNEL(swiglu, SwiGlu, true)
KERNEL(geglu, GeGlu, true)
KERNEL(silu, Silu, false)
KERNEL(gelu, Gelu, false)
KERNEL(gelu_tanh, GeluTanh, false)
KERNEL(relu2, Relu2, false)
KERNEL(scale, Scale, false)
KERNEL(softcap, SoftCap, false)
