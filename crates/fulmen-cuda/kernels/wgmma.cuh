// Hopper's matrix instructions for whole groups of four warps, its bulk copies and its barriers in shared memory.
#pragma once
#include "tensor_cores.cuh"

// ---- Barriers -----------------------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes barriers known to bulk copies.
__device__ __forceinline__ void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrives, and says how many bytes copies will bring in this phase.
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives when the copies are done that this thread has begun.
__device__ __forceinline__ void barrier_arrive_after_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits until the phase of this parity is over.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Waits at a barrier of the block, other than 0, for so many threads.
__device__ __forceinline__ void some_sync(u32 barrier, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// What ordinary instructions have written to shared memory, as far as this thread knows of it, is there for matrix
// instructions and bulk copies.
__device__ __forceinline__ void shared_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- Registers: of a kernel with bounds, by all four warps of a group ---------------------------------------------

template <int N>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// ---- Bulk copies: sizes and addresses are multiples of 16 ---------------------------------------------------------

__device__ __forceinline__ void bulk_copy(u32 to, const u8* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// ---- Matrices -----------------------------------------------------------------------------------------------------

// A tile of panel rows in shared memory, from a multiple of 1024 on: 128-byte swizzle, 1024 bytes from eight rows to the
// next. The next 16 elements of the rows are 2 further.
__device__ __forceinline__ u64 tile_descriptor(u32 address) {
    return (u64)1 << 62 | (u64)(1024 / 16) << 32 | (u64)1 << 16 | (address & 0x3ffff) >> 4;
}

// The same for a matrix whose columns are the tile's rows: 64 columns of 16 elements are 2048 bytes, and the tile of the next
// 64 rows of the matrix is `next` bytes further.
__device__ __forceinline__ u64 turned_descriptor(u32 address, u32 next) {
    return (u64)1 << 62 | (u64)(1024 / 16) << 32 | (u64)(next / 16) << 16 | (address & 0x3ffff) >> 4;
}

// What was written to registers and shared memory is there for the instructions that follow.
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until no more than N groups are under way.
template <int N>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// The compiler must not move these across.
template <int N>
__device__ __forceinline__ void keep(float (&sums)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) asm volatile("" : "+f"(sums[i][j])::"memory");
}

template <int N>
__device__ __forceinline__ void keep(u32 (&words)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) asm volatile("" : "+r"(words[i][j])::"memory");
}

#define EIGHT(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define EIGHTS2(i) EIGHT(i), EIGHT(i + 1)
#define EIGHTS4(i) EIGHTS2(i), EIGHTS2(i + 2)
#define EIGHTS8(i) EIGHTS4(i), EIGHTS4(i + 4)
#define EIGHTS16(i) EIGHTS8(i), EIGHTS8(i + 8)
#define REGISTERS_32 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15" \
    ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REGISTERS_40 REGISTERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define REGISTERS_64 \
    REGISTERS_40 \
    ",%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55" \
    ",%56,%57,%58,%59,%60,%61,%62,%63"
#define REGISTERS_80 \
    REGISTERS_64 \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define REGISTERS_96 \
    REGISTERS_80 \
    ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define REGISTERS_128 \
    REGISTERS_96 \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
    ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// c += a · bᵀ: 64 rows, 16 elements deep, eights of columns by the size of c.
#define WGMMA(columns, registers, type, a, b, next0, next1, ...)                                                      \
    asm volatile(                                                                                                     \
        "{\n.reg .pred yes;\nsetp.eq.u32 yes, 0, 0;\n"                                                                \
        "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" registers "}, %" #next0 ", %" #next1\
        ", yes, 1, 1, 0, 0;\n}"                                                                                       \
        : __VA_ARGS__                                                                                                 \
        : "l"(a), "l"(b))
#define WGMMA_OF(Type, name)                                                                                          \
    template <>                                                                                                       \
    struct Wgmma<Type> {                                                                                              \
        static __device__ __forceinline__ void multiply(float (&c)[10][4], u64 a, u64 b) {                            \
            WGMMA(80, REGISTERS_40, name, a, b, 40, 41, EIGHTS8(0), EIGHTS2(8));                                      \
        }                                                                                                             \
        static __device__ __forceinline__ void multiply(float (&c)[16][4], u64 a, u64 b) {                            \
            WGMMA(128, REGISTERS_64, name, a, b, 64, 65, EIGHTS16(0));                                                \
        }                                                                                                             \
        static __device__ __forceinline__ void multiply(float (&c)[20][4], u64 a, u64 b) {                            \
            WGMMA(160, REGISTERS_80, name, a, b, 80, 81, EIGHTS16(0), EIGHTS4(16));                                   \
        }                                                                                                             \
        static __device__ __forceinline__ void multiply(float (&c)[24][4], u64 a, u64 b) {                            \
            WGMMA(192, REGISTERS_96, name, a, b, 96, 97, EIGHTS16(0), EIGHTS8(16));                                   \
        }                                                                                                             \
        static __device__ __forceinline__ void multiply(float (&c)[32][4], u64 a, u64 b) {                            \
            WGMMA(256, REGISTERS_128, name, a, b, 128, 129, EIGHTS16(0), EIGHTS16(16));                               \
        }                                                                                                             \
    };
template <typename Type>
struct Wgmma;
WGMMA_OF(Half, "f16")
WGMMA_OF(Bfloat, "bf16")

// c = a · bᵀ, or c += that.
#define WGMMA_SETS(columns, registers, next0, next1, next2, ...)                                                      \
    asm volatile(                                                                                                     \
        "{\n.reg .pred adds;\nsetp.ne.u32 adds, %" #next2 ", 0;\n"                                                    \
        "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" registers "}, %" #next0 ", %" #next1           \
        ", adds, 1, 1, 0, 0;\n}"                                                                                      \
        : __VA_ARGS__                                                                                                 \
        : "l"(a), "l"(b), "r"((u32)adds))
__device__ __forceinline__ void wgmma_sets(float (&c)[16][4], u64 a, u64 b, bool adds) {
    WGMMA_SETS(128, REGISTERS_64, 64, 65, 66, EIGHTS16(0));
}

// c += a · b, with a in registers and b by a turned descriptor.
#define WGMMA_TURNED(columns, registers, next0, next1, next2, next3, next4, ...)                                      \
    asm volatile(                                                                                                     \
        "{\n.reg .pred yes;\nsetp.eq.u32 yes, 0, 0;\n"                                                                \
        "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" registers "}, {%" #next0 ",%" #next1 ",%" #next2\
        ",%" #next3 "}, %" #next4 ", yes, 1, 1, 1;\n}"                                                                \
        : __VA_ARGS__                                                                                                 \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
__device__ __forceinline__ void wgmma_turned(float (&c)[8][4], const u32 (&a)[4], u64 b) {
    WGMMA_TURNED(64, REGISTERS_32, 32, 33, 34, 35, 36, EIGHTS8(0));
}
__device__ __forceinline__ void wgmma_turned(float (&c)[16][4], const u32 (&a)[4], u64 b) {
    WGMMA_TURNED(128, REGISTERS_64, 64, 65, 66, 67, 68, EIGHTS16(0));
}
