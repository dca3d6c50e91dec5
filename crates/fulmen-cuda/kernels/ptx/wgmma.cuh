// wgmma: warpgroup-level tensor cores of Hopper (sm_90a). One warpgroup multiplies 64 x N x 16 with f32
// accumulators; operands come from shared memory by 64-bit matrix descriptors, A optionally from registers.
//
// Accumulators are `float c[N / 8][4]`: c[j] is what lane 4 g + t of a warp holds of the 8-column tile j,
// rows g and g + 8 of the warp's 16 rows, columns 2 t and 2 t + 1.
#pragma once
#include "ptx/mma.cuh"

// Descriptor of a K-major tile in shared memory, 128-byte swizzle, 1024-byte aligned, 1024 bytes from one
// group of eight rows to the next. Add 2 for the next 16 elements along K.
DEVICE u64 wgmma_descriptor(u32 address) {
    return (u64)1 << 62 | (u64)(1024 / 16) << 32 | (u64)1 << 16 | (address & 0x3ffff) >> 4;
}

// Descriptor of an MN-major (transposed) tile: 16 K-rows of 64 columns are 2048 bytes, and the tile of the
// next 64 columns is `next` bytes further.
DEVICE u64 wgmma_descriptor_trans(u32 address, u32 next) {
    return (u64)1 << 62 | (u64)(1024 / 16) << 32 | (u64)(next / 16) << 16 | (address & 0x3ffff) >> 4;
}

// Orders register and shared-memory accesses before the wgmma instructions that follow.
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most N committed groups are still in flight.
template <int N>
DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Compiler fence: keeps accesses to these registers from moving across.
template <int N>
DEVICE void wgmma_fence_operand(float (&sums)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) asm volatile("" : "+f"(sums[i][j])::"memory");
}

template <int N>
DEVICE void wgmma_fence_operand(u32 (&words)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) asm volatile("" : "+r"(words[i][j])::"memory");
}

#define N_TILE(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define N_TILES2(i) N_TILE(i), N_TILE(i + 1)
#define N_TILES4(i) N_TILES2(i), N_TILES2(i + 2)
#define N_TILES8(i) N_TILES4(i), N_TILES4(i + 4)
#define N_TILES16(i) N_TILES8(i), N_TILES8(i + 8)
#define REGISTERS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define REGISTERS_32                                        \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15" \
    ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REGISTERS_40 REGISTERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define REGISTERS_64                                                   \
    REGISTERS_40                                                       \
    ",%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55" \
    ",%56,%57,%58,%59,%60,%61,%62,%63"
#define REGISTERS_80 \
    REGISTERS_64     \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define REGISTERS_96 \
    REGISTERS_80     \
    ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define REGISTERS_128                                                              \
    REGISTERS_96                                                                   \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
    ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// c += a · bᵀ, m64 k16; the size of c gives n.
#define WGMMA(columns, registers, type, a, b, next0, next1, ...)                                           \
    asm volatile(                                                                                          \
        "{\n.reg .pred yes;\nsetp.eq.u32 yes, 0, 0;\n"                                                     \
        "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" registers "}, %" #next0 \
        ", %" #next1 ", yes, 1, 1, 0, 0;\n}"                                                               \
        : __VA_ARGS__                                                                                      \
        : "l"(a), "l"(b))
#define WGMMA_OF(Type, name)                                                              \
    template <>                                                                           \
    struct Wgmma<Type> {                                                                  \
        static DEVICE void mma(float (&c)[10][4], u64 a, u64 b) {                         \
            WGMMA(80, REGISTERS_40, name, a, b, 40, 41, N_TILES8(0), N_TILES2(8));        \
        }                                                                                 \
        static DEVICE void mma(float (&c)[16][4], u64 a, u64 b) {                         \
            WGMMA(128, REGISTERS_64, name, a, b, 64, 65, N_TILES16(0));                   \
        }                                                                                 \
        static DEVICE void mma(float (&c)[20][4], u64 a, u64 b) {                         \
            WGMMA(160, REGISTERS_80, name, a, b, 80, 81, N_TILES16(0), N_TILES4(16));     \
        }                                                                                 \
        static DEVICE void mma(float (&c)[24][4], u64 a, u64 b) {                         \
            WGMMA(192, REGISTERS_96, name, a, b, 96, 97, N_TILES16(0), N_TILES8(16));     \
        }                                                                                 \
        static DEVICE void mma(float (&c)[32][4], u64 a, u64 b) {                         \
            WGMMA(256, REGISTERS_128, name, a, b, 128, 129, N_TILES16(0), N_TILES16(16)); \
        }                                                                                 \
    };
template <typename Type>
struct Wgmma;
WGMMA_OF(MmaF16, "f16")
WGMMA_OF(MmaBf16, "bf16")

// c = a · bᵀ, or c += a · bᵀ where `accumulate`.
#define WGMMA_ACCUMULATE_IF(columns, registers, next0, next1, next2, ...)                                 \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.u32 adds, %" #next2                                        \
                 ", 0;\n"                                                                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" registers "}, %" #next0 \
                 ", %" #next1 ", adds, 1, 1, 0, 0;\n}"                                                    \
                 : __VA_ARGS__                                                                            \
                 : "l"(a), "l"(b), "r"((u32)accumulate))
DEVICE void wgmma_accumulate_if(float (&c)[16][4], u64 a, u64 b, bool accumulate) {
    WGMMA_ACCUMULATE_IF(128, REGISTERS_64, 64, 65, 66, N_TILES16(0));
}

// c += a · b with A fragments in registers: B by a transposed descriptor (`transposed` 1), or K-major (0).
#define WGMMA_A_REGISTERS(transposed, columns, registers, next0, next1, next2, next3, next4, ...) \
    asm volatile(                                                                                 \
        "{\n.reg .pred yes;\nsetp.eq.u32 yes, 0, 0;\n"                                            \
        "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" registers "}, {%" #next0 \
        ",%" #next1 ",%" #next2 ",%" #next3 "}, %" #next4 ", yes, 1, 1, " #transposed ";\n}"      \
        : __VA_ARGS__                                                                             \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
DEVICE void wgmma_a_registers(float (&c)[8][4], const u32 (&a)[4], u64 b) {
    WGMMA_A_REGISTERS(1, 64, REGISTERS_32, 32, 33, 34, 35, 36, N_TILES8(0));
}
DEVICE void wgmma_a_registers(float (&c)[16][4], const u32 (&a)[4], u64 b) {
    WGMMA_A_REGISTERS(1, 128, REGISTERS_64, 64, 65, 66, 67, 68, N_TILES16(0));
}
DEVICE void wgmma_a_registers_k_major(float (&c)[4][4], const u32 (&a)[4], u64 b) {
    WGMMA_A_REGISTERS(0, 32, REGISTERS_16, 16, 17, 18, 19, 20, N_TILES4(0));
}
DEVICE void wgmma_a_registers_k_major(float (&c)[8][4], const u32 (&a)[4], u64 b) {
    WGMMA_A_REGISTERS(0, 64, REGISTERS_32, 32, 33, 34, 35, 36, N_TILES8(0));
}
DEVICE void wgmma_a_registers_k_major(float (&c)[16][4], const u32 (&a)[4], u64 b) {
    WGMMA_A_REGISTERS(0, 128, REGISTERS_64, 64, 65, 66, 67, 68, N_TILES16(0));
}
DEVICE void wgmma_a_registers_k_major(float (&c)[24][4], const u32 (&a)[4], u64 b) {
    WGMMA_A_REGISTERS(0, 192, REGISTERS_96, 96, 97, 98, 99, 100, N_TILES16(0), N_TILES8(16));
}
DEVICE void wgmma_a_registers_k_major(float (&c)[32][4], const u32 (&a)[4], u64 b) {
    WGMMA_A_REGISTERS(0, 256, REGISTERS_128, 128, 129, 130, 131, 132, N_TILES16(0), N_TILES16(16));
}
