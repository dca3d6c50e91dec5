// Integer types and macros that every kernel file uses. No header of the CUDA toolkit is included anywhere:
// NVRTC provides the built-in types (float4, uint2, ...); everything else is defined here and in ptx/.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__
#define FULL_WARP 0xffffffffu
#define INFINITE __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fc00000)
