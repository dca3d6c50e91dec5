// Element-wise ops of one or two operands. Each thread makes four elements, by one load where all addresses allow it.
// The output may be an operand: an element is read before it is written, by the same thread.
#include "common.cuh"

struct ElementwiseParams {
    const float* a;
    const float* b;  // the second operand, if there is one
    float* out;
    u64 n;
    float scalar;
    u32 wide;  // all addresses are multiples of 16
};

// 1 / (1 + e^-x), with all its digits on both sides of 0.
DEVICE float sigmoid(float x) {
    float t = expf(-fabsf(x));
    return (x >= 0.0f ? 1.0f : t) / (1.0f + t);
}

DEVICE float silu_of(float x) { return x == -INFINITE ? 0.0f : x * sigmoid(x); }

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
// x · Φ(x), by the complementary error function, which keeps its digits far below 0.
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
struct Scale {
    static DEVICE float of(float x, float, float scalar) { return x * scalar; }
};
struct SoftCap {
    static DEVICE float of(float x, float, float scalar) { return scalar * tanhf(x / scalar); }
};

template <typename Op, bool BINARY>
DEVICE void elementwise(const ElementwiseParams& p) {
    pdl_begin();
    u64 at = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (at >= p.n) return;
    if (p.wide && at + 4 <= p.n) {
        float4 a = *(const float4*)(p.a + at), b = a;
        if (BINARY) b = *(const float4*)(p.b + at);
        float4 out;
        out.x = Op::of(a.x, b.x, p.scalar);
        out.y = Op::of(a.y, b.y, p.scalar);
        out.z = Op::of(a.z, b.z, p.scalar);
        out.w = Op::of(a.w, b.w, p.scalar);
        *(float4*)(p.out + at) = out;
        return;
    }
    for (u64 i = at; i < at + 4 && i < p.n; i++) {
        float a = p.a[i];
        p.out[i] = Op::of(a, BINARY ? p.b[i] : a, p.scalar);
    }
}

#define KERNEL(name, Op, BINARY)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ ElementwiseParams p) {             \
        elementwise<Op, BINARY>(p);                                                                                   \
    }

KERNEL(add, Add, true)
KERNEL(mul, Mul, true)
KERNEL(swiglu, SwiGlu, true)
KERNEL(silu, Silu, false)
KERNEL(gelu, Gelu, false)
KERNEL(gelu_tanh, GeluTanh, false)
KERNEL(scale, Scale, false)
KERNEL(softcap, SoftCap, false)
