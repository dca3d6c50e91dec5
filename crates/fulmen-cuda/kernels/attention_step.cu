// targets: 90
// Attention of a decode step over an f16 cache: norm per head, RoPE and store of the new keys and values, then causal
// grouped-query attention, as one kernel.
//
// - A cluster of RANKS blocks works on one row and one KV head: the positions are dealt to its warps in tiles of 16, so K
//   and V are read once for all query heads of the group. The fewer rows, the more ranks; one rank is no cluster.
// - Tiles are fetched before the kernel waits for the one before it: all positions but the newest are there. Where the newest are
//   stored by the kernel before (`rotate` is 0), it waits first.
// - A row whose sequence has other rows as well must see what they store: its blocks make their keys and values, too, and
//   write the same bits to the cache, before they read it.
// - Scores and values by tensor cores, query heads as the 16 rows of a tile; an online softmax per warp; warps are combined in
//   shared memory, and blocks send what they have to the one of the cluster that ends it.

#include "common.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "ptx/tma.cuh"
#include "q8_activations.cuh"
#include "f16_fragments.cuh"

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * 32;
constexpr int TILE = 16;

struct Args {
  const float* q;
  const float* k;
  const float* v;
  const float* q_gamma;  // or null
  const float* k_gamma;  // or null
  const float* factors;  // or null
  const u32* positions;
  const u32* sequences;  // or null
  u16* k_cache;
  u16* v_cache;
  float* q_out;  // may be `q`
  float* out;
  u8* codes;      // where the codes of the result go, or null: one row, and blocks have multiples of 32 elements of it
  u8* halves[2];  // where the result goes in 16 bits, in both orders, or null: as many rows as the image has,
  float* half_factors;  // whose factors are 8
  Fault* fault;
  float epsilon;
  float scale;
  float freq_scale;
  float magnitude;
  double log2_base;
  u32 heads;
  u32 kv_heads;
  u32 capacity;
  u32 seqs;
  u32 adjacent;  // pairing of RoPE; the whole head turns
  u32 rotate;    // 0: no RoPE, no norm, no store
};

// A head's values in a warp: pairs lane + 32 j.
template <int HD>
struct Head {
  static constexpr int PAIRS = HD / 64;
  float a[PAIRS], b[PAIRS];

  static DEVICE u32 first(int j, u32 adjacent) {
    u32 pair = (threadIdx.x & 31) + 32 * j;
    return adjacent ? 2 * pair : pair;
  }
  static DEVICE u32 second(int j, u32 adjacent) { return first(j, adjacent) + (adjacent ? 1 : HD / 2); }

  DEVICE void load(const float* from, u32 adjacent) {
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
      a[j] = __ldcg(from + first(j, adjacent));
      b[j] = __ldcg(from + second(j, adjacent));
    }
  }
  DEVICE void norm(const Head& gamma, float epsilon) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < PAIRS; j++) sum += a[j] * a[j] + b[j] * b[j];
    float factor = rsqrtf(warp_sum(sum) / HD + epsilon);
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
      a[j] = a[j] * factor * gamma.a[j];
      b[j] = b[j] * factor * gamma.b[j];
    }
  }
  DEVICE void turn(const float (&cosine)[PAIRS], const float (&sine)[PAIRS]) {
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
      float x = a[j], y = b[j];
      a[j] = x * cosine[j] - y * sine[j];
      b[j] = x * sine[j] + y * cosine[j];
    }
  }
};

// Cosine and sine of a pair of dims.
DEVICE float2 turn_of(u32 position, u32 pair, u32 dims, const float* factors, float freq_scale, float magnitude, double log2_base) {
  double turns = (double)position * (double)freq_scale * exp2(-2.0 * pair / dims * log2_base) * 0.31830988618379067154;
  if (factors) turns /= (double)factors[pair];
  turns -= 2.0 * rint(turns * 0.5);
  float sine, cosine;
  sincospif((float)turns, &sine, &cosine);
  return make_float2(cosine * magnitude, sine * magnitude);
}

// An element of the result in 16 bits. It is an average of halves: of an eighth of it neither elements nor the two parts of sums are too
// large.
DEVICE void store_half(const Args& args, u32 row, u32 at, float value) {
  value *= 0.125f;
  const float second = __shfl_down_sync(FULL_WARP, value, 1), third = __shfl_down_sync(FULL_WARP, value, 2), fourth = __shfl_down_sync(FULL_WARP, value, 3);
  const uint2 four = make_uint2(f16_pair(value, third), f16_pair(second, fourth));
  float sum = f16_pair_sum(four.x) + f16_pair_sum(four.y);
  sum += __shfl_xor_sync(FULL_WARP, sum, 4);
  sum += __shfl_xor_sync(FULL_WARP, sum, 8);
  if (at % 4 > 0) return;
#pragma unroll
  for (u32 order = 0; order < K_ORDERS; order++) store_fragment_x4(args.halves[order], order, gridDim.y, row, at, four, sum);
  if (at == 0) args.half_factors[row] = 8;
}

// For where it is needed twice: code that is not there is not fetched.
__device__ __noinline__ float2 turn_of_called(u32 position, u32 pair, u32 dims, const float* factors, float freq_scale, float magnitude,
                                              double log2_base) {
  return turn_of(position, pair, dims, factors, freq_scale, magnitude, log2_base);
}

// DEPTH: tiles in a warp's ring. ONE: there is one row, and the code is as short as it can be: at the beginning of a kernel
// the instructions come from far away.
template <int HD, int RANKS, int DEPTH, bool ONE>
DEVICE void attend(const Args& args) {
  constexpr int ROUND = RANKS * WARPS;           // tiles that are read at a time
  constexpr int PIECES = HD / 8;                 // of 16 bytes in a row of K or V
  constexpr int LINES = 32 / PIECES;             // rows that a warp copies at once
  constexpr int TILE_BYTES = TILE * HD * 2;      // of K, and of V
  constexpr int STEPS = HD / 16;
  extern __shared__ __align__(128) u8 memory[];  // rings of the warps
  __shared__ __align__(16) u16 q_shared[8][HD + 8];
  __shared__ float q_factor[8], largest_of[WARPS][8], total_of[WARPS][8], top_of[8];
  __shared__ float2 turns[ONE ? HD / 2 : 1];
  // What the blocks of the cluster have of this one's share of the result: sums, and of its heads the largest and the total.
  __shared__ float theirs[RANKS][8 * HD / RANKS], their_largest[RANKS][8], their_total[RANKS][8];
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const u32 rank = blockIdx.x % RANKS, kv = blockIdx.x / RANKS, row = blockIdx.y;
  const u32 group = args.heads / args.kv_heads;

  pdl_launch_dependents();
  if (RANKS > 1) cluster_arrive();
  // The weights of the step have driven the gains out of the cache: they are called before anything is waited for.
  if (threadIdx.x == 0 && rank == 0) {
    if (args.q_gamma) cp_async_bulk_prefetch_l2_covering(args.q_gamma, HD * 4);
    if (args.k_gamma) cp_async_bulk_prefetch_l2_covering(args.k_gamma, HD * 4);
  }
  const u32 position = args.positions[row];
  const u32 sequence = args.sequences ? args.sequences[row] : 0;
  const bool sound = position < args.capacity && sequence < args.seqs;
  const u64 base = (((u64)(sound ? sequence : 0) * args.kv_heads + kv) * args.capacity) * HD;
  const u16 *keys = args.k_cache + base, *values = args.v_cache + base;
  // Positions before `old` are read from the cache at once.
  const u32 old = sound ? position + (args.rotate ? 0 : 1) : 0, tiles = sound ? position / TILE + 1 : 0;
  const u32 ring = shared_address(memory) + warp * DEPTH * 2 * TILE_BYTES;

  // Piece p of row r is at (p ^ r % 8) in its row.
  const u32 line = lane / PIECES, piece = lane % PIECES;
  const u32 place = line * PIECES * 16 + ((piece ^ line) * 16), from = line * HD + piece * 8;
  auto fetch = [&](u32 tile, u32 stage, u32 past) {
    const u32 to = ring + stage * 2 * TILE_BYTES;
    const u16 *k = keys + (u64)tile * TILE * HD + from, *v = values + (u64)tile * TILE * HD + from;
    if (!ONE && tile * TILE + TILE <= past) {
#pragma unroll
      for (int i = 0; i < TILE / LINES; i++) {
        u32 at = to + i * LINES * PIECES * 16 + (place ^ ((i * LINES) % 8 * 16));
        cp_async_16(at, k + i * LINES * HD);
        cp_async_16(at + TILE_BYTES, v + i * LINES * HD);
      }
    } else {
#pragma unroll(ONE ? TILE / LINES : 1)
      for (u32 i = 0; i < TILE / LINES; i++) {
        u32 at = to + i * LINES * PIECES * 16 + (place ^ ((i * LINES) % 8 * 16));
        if (tile * TILE + i * LINES + line < past) {
          cp_async_16(at, k + i * LINES * HD);
          cp_async_16(at + TILE_BYTES, v + i * LINES * HD);
        } else {  // no NaN may come from what was there
          st_shared_v4_zero(at);
          st_shared_v4_zero(at + TILE_BYTES);
        }
      }
    }
  };
  const u32 first_tile = rank + RANKS * warp;
  auto fetch_first = [&](u32 past) {
#pragma unroll 1
    for (u32 round = 0; round < DEPTH - 1; round++) {
      u32 tile = first_tile + round * ROUND;
      if (tile < tiles) fetch(tile, round, past);
      cp_async_commit();
    }
  };

  // Rows whose keys and values the block makes: of this one's sequence and up to its position, in a tile of this rank.
  u32 fresh = 0;
  bool alone = true;
  if (args.rotate && sound) {
    if (ONE) {
      fresh = position / TILE % RANKS == rank;
    } else {
      u32 rows = gridDim.y, their_position = 0, their_sequence = 0;
      if (lane < rows) {
        their_position = args.positions[lane];
        if (args.sequences) their_sequence = args.sequences[lane];
      }
      u32 mates = __ballot_sync(~0u, lane < rows && their_sequence == sequence);
      alone = mates == 1u << row;
      // Of rows that name one place the last stays.
      u32 later = __match_any_sync(~0u, their_position) & mates & (~1u << lane);
      bool made = (mates >> lane & 1) && their_position <= position && later == 0 && their_position / TILE % RANKS == rank;
      fresh = __ballot_sync(~0u, made);
    }
  }
  if (!args.rotate) pdl_wait();
  if (alone) fetch_first(old);

  // Jobs: the query heads, then keys and values of the fresh rows.
  const u32 last_tile = position / TILE;
  float cosine[Head<HD>::PAIRS], sine[Head<HD>::PAIRS];
  auto turns_at = [&](u32 where) {
#pragma unroll
    for (int j = 0; j < Head<HD>::PAIRS; j++) {
      const u32 pair = lane + 32 * j;
      const float2 turn = turn_of_called(where, pair, HD, args.factors, args.freq_scale, args.magnitude, args.log2_base);
      cosine[j] = turn.x;
      sine[j] = turn.y;
    }
  };
  Head<HD> gamma;
  if (args.rotate) {
    if (!ONE)
      turns_at(position);
    else if (threadIdx.x < HD / 2)
      turns[threadIdx.x] = turn_of(position, threadIdx.x, HD, args.factors, args.freq_scale, args.magnitude, args.log2_base);
  }
  u32 turned = position;
  for (u32 i = threadIdx.x; i < 8 * (HD + 8) / 2; i += THREADS) ((u32*)q_shared)[i] = 0;
  if (threadIdx.x < 8) q_factor[threadIdx.x] = 0;
  __syncthreads();
  if (ONE && args.rotate) {
#pragma unroll
    for (int j = 0; j < Head<HD>::PAIRS; j++) cosine[j] = turns[lane + 32 * j].x, sine[j] = turns[lane + 32 * j].y;
  }

  Head<HD> query;  // of the warp's head; there are no more heads than warps
  if (args.rotate) pdl_wait();
  const u32 jobs = group + (ONE ? 2 : 2 * __popc(fresh));
  for (u32 job = warp; job < jobs; job += WARPS) {
    if (job < group) {
      u32 head = kv * group + job;
      if (args.rotate && args.q_gamma) gamma.load(args.q_gamma, args.adjacent);
      Head<HD>& h = query;
      h.load(args.q + ((u64)row * args.heads + head) * HD, args.adjacent);
      if (args.rotate) {
        if (args.q_gamma) h.norm(gamma, args.epsilon);
        h.turn(cosine, sine);
      }
      // By a power of two, so that halves hold any query.
      u32 bits = 0;
#pragma unroll
      for (int j = 0; j < Head<HD>::PAIRS; j++)
        bits = max(bits, max(__float_as_uint(h.a[j]) & ~(1u << 31), __float_as_uint(h.b[j]) & ~(1u << 31)));
#pragma unroll
      for (int step = 16; step > 0; step /= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, step));
      int exponent = (int)(bits >> 23) - 127;
      if (exponent < -100) exponent = -100;
      if (exponent > 120) exponent = 120;
      float down = __uint_as_float((u32)(127 - exponent) << 23), up = __uint_as_float((u32)(127 + exponent) << 23);
#pragma unroll
      for (int j = 0; j < Head<HD>::PAIRS; j++) {
        q_shared[job][Head<HD>::first(j, args.adjacent)] = f32_to_f16(h.a[j] * down);
        q_shared[job][Head<HD>::second(j, args.adjacent)] = f32_to_f16(h.b[j] * down);
      }
      if (lane == 0) q_factor[job] = up * args.scale * 1.44269504088896341f;
    } else if (!ONE || fresh) {
      bool is_key = (job - group) % 2 == 0;
      u32 from_row = row, where = position;
      if (!ONE) {
        u32 left = fresh;
        for (u32 skipped = (job - group) / 2; skipped > 0; skipped--) left &= left - 1;
        from_row = __ffs(left) - 1;
      }
      Head<HD> h;
      h.load((is_key ? args.k : args.v) + ((u64)from_row * args.kv_heads + kv) * HD, args.adjacent);
      if (!ONE && from_row != row) where = args.positions[from_row];
      if (is_key) {
        if (!ONE && where != turned) turns_at(where);  // the warp's queries are done
        turned = where;
        if (args.k_gamma) {
          gamma.load(args.k_gamma, args.adjacent);
          h.norm(gamma, args.epsilon);
        }
        h.turn(cosine, sine);
      }
      u16* cache = (is_key ? args.k_cache : args.v_cache) + base + (u64)where * HD;
      // A tile that was fetched already has zeros there, and is read after the barrier below. A later one is fetched
      // from the cache after that barrier.
      const bool fetched = alone && last_tile < ROUND * (DEPTH - 1);
      u32 r = where % TILE, owner_warp = last_tile / RANKS % WARPS, stage = last_tile / ROUND;
      u8* tile = memory + (owner_warp * DEPTH + stage) * 2 * TILE_BYTES + (is_key ? 0 : TILE_BYTES);
#pragma unroll
      for (int j = 0; j < Head<HD>::PAIRS; j++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          u32 dim = half ? Head<HD>::second(j, args.adjacent) : Head<HD>::first(j, args.adjacent);
          u16 bits16 = f32_to_f16(half ? h.b[j] : h.a[j]);
          cache[dim] = bits16;
          if (fetched) *(u16*)(tile + (r * PIECES + ((dim / 8) ^ (r & 7))) * 16 + dim % 8 * 2) = bits16;
        }
      }
    }
  }
  if (!sound && blockIdx.x == 0 && threadIdx.x == 0) {
    if (sequence >= args.seqs)
      report(args.fault, FAULT_SEQUENCE, row, sequence, args.seqs);
    else
      report(args.fault, FAULT_POSITION, row, position, args.capacity);
  }
  __threadfence_block();
  __syncthreads();
  if (!ONE && !alone) fetch_first(position + 1);

  // ---------------------------------------------------------------- tiles
  u32 qa[STEPS][2];
#pragma unroll
  for (int s = 0; s < STEPS; s++) {
    qa[s][0] = *(const u32*)&q_shared[lane / 4][s * 16 + lane % 4 * 2];
    qa[s][1] = *(const u32*)&q_shared[lane / 4][s * 16 + lane % 4 * 2 + 8];
  }
  const float factor = q_factor[lane / 4];
  float o[HD / 8][2];
#pragma unroll
  for (int i = 0; i < HD / 8; i++) o[i][0] = o[i][1] = 0;
  float largest = -1e30f, total = 0;
  u32 stage = 0;
  for (u32 tile = first_tile; tile < tiles; tile += ROUND) {
    const u32 next = tile + (DEPTH - 1) * ROUND, k_tile = ring + stage * 2 * TILE_BYTES, v_tile = k_tile + TILE_BYTES;
    // The newest position of a later round is in the cache by now, written by this block. The stage before this one is free.
    if (next < tiles) fetch(next, stage == 0 ? DEPTH - 1 : stage - 1, position + 1);
    cp_async_commit();
    cp_async_wait<DEPTH - 1>();
    __syncwarp();
    float s[2][2] = {}, odd[2][2] = {};  // of even and odd steps: shorter chains
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      // Matrices: positions 0-7 and 8-15, first and second 8 dims.
      u32 r = (lane & 7) + (lane / 16) * 8, piece = step * 2 + (lane / 8) % 2;
      u32 b[4];
      ldmatrix_x4(b, k_tile + (r * PIECES + (piece ^ (r & 7))) * 16);
      mma_m8n8k16_f16(!ONE && step % 2 ? odd[0] : s[0], qa[step][0], qa[step][1], b[0], b[1]);
      mma_m8n8k16_f16(!ONE && step % 2 ? odd[1] : s[1], qa[step][0], qa[step][1], b[2], b[3]);
    }
    float top = largest;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        u32 p = tile * TILE + i * 8 + lane % 4 * 2 + j;
        s[i][j] = p <= position ? (ONE ? s[i][j] : s[i][j] + odd[i][j]) * factor : -1e30f;
        top = fmaxf(top, s[i][j]);
      }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    float shrink = exp2f(largest - top);
    largest = top;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        u32 p = tile * TILE + i * 8 + lane % 4 * 2 + j;
        s[i][j] = p <= position ? exp2f(s[i][j] - top) : 0;
        sum += s[i][j];
      }
    total = total * shrink + sum;
    u32 p0 = pack_f16x2(s[0][0], s[0][1]), p1 = pack_f16x2(s[1][0], s[1][1]);
#pragma unroll
    for (int i = 0; i < HD / 8; i++) {
      o[i][0] *= shrink;
      o[i][1] *= shrink;
    }
#pragma unroll
    for (int i = 0; i < HD / 16; i++) {
      // Matrices: positions 0-7 and 8-15 of the first 8 dims, then of the second.
      u32 r = (lane & 7) + (lane / 8) % 2 * 8, piece = i * 2 + lane / 16;
      u32 b[4];
      ldmatrix_x4_trans(b, v_tile + (r * PIECES + (piece ^ (r & 7))) * 16);
      mma_m8n8k16_f16(o[2 * i], p0, p1, b[0], b[1]);
      mma_m8n8k16_f16(o[2 * i + 1], p0, p1, b[2], b[3]);
    }
    __syncwarp();
    stage = stage == DEPTH - 1 ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  total += __shfl_xor_sync(~0u, total, 1);
  total += __shfl_xor_sync(~0u, total, 2);

  // ---------------------------------------------------------------- warps, then blocks
  if (lane % 4 == 0) largest_of[warp][lane / 4] = largest;
  __syncthreads();
  float* partial = (float*)memory;  // [WARPS][8][HD]
  if (lane / 4 < group) {
    float top = -1e30f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, largest_of[w][lane / 4]);
    const float part = exp2f(largest - top);
    if (lane % 4 == 0) {
      total_of[warp][lane / 4] = total * part;
      if (warp == 0) top_of[lane / 4] = top;
    }
#pragma unroll
    for (int i = 0; i < HD / 8; i++)
      *(float2*)(partial + (warp * 8 + lane / 4) * HD + i * 8 + lane % 4 * 2) = make_float2(o[i][0] * part, o[i][1] * part);
  }
  __syncthreads();
  // Every block has read its queries when they are written over.
  auto store_query = [&] {
    float* to = args.q_out + ((u64)row * args.heads + kv * group + warp) * HD;
#pragma unroll
    for (int j = 0; j < Head<HD>::PAIRS; j++) {
      to[Head<HD>::first(j, args.adjacent)] = query.a[j];
      to[Head<HD>::second(j, args.adjacent)] = query.b[j];
    }
  };
  float* out = args.out + ((u64)row * args.heads + kv * group) * HD;
  const u32 share = group * HD / RANKS;
  const float inverse = __fdividef(1.0f, (float)share);
  if (RANKS > 1) cluster_wait();  // all blocks have begun
  for (u32 at = threadIdx.x; at < group * HD; at += THREADS) {
    u32 head = at / HD;
    float sum = 0, weight = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      sum += partial[w * 8 * HD + at];
      weight += total_of[w][head];
    }
    if (RANKS == 1) {
      const float result = sum / weight;
      out[at] = result;
      if (args.half_factors) store_half(args, row, kv * group * HD + at, result);
    } else {
      // To the block that ends it.
      const u32 to = (u32)(((float)at + 0.5f) * inverse), index = at - to * share;
      st_shared_cluster(&theirs[rank][index], to, sum);
      if (index == 0 || at % HD == 0) {
        st_shared_cluster(&their_largest[rank][head], to, top_of[head]);
        st_shared_cluster(&their_total[rank][head], to, weight);
      }
    }
  }
  if (RANKS > 1) {
    cluster_arrive();
    cluster_wait();
  }
  if (args.rotate && rank == 0 && warp < group) store_query();
  if constexpr (RANKS > 1) {
    for (u32 index = threadIdx.x; index < share; index += THREADS) {
      const u32 at = rank * share + index, head = at / HD;
      float top = -1e30f, sum = 0, weight = 0;
#pragma unroll
      for (int r = 0; r < RANKS; r++) top = fmaxf(top, their_largest[r][head]);
#pragma unroll
      for (int r = 0; r < RANKS; r++) {
        const float part = exp2f(their_largest[r][head] - top);
        sum += part * theirs[r][index];
        weight += part * their_total[r][head];
      }
      const float result = sum / weight;
      out[at] = result;
      if (ONE && args.codes) quantize_q8_row_x1(args.codes, kv * group * HD + at, result);
      if (!ONE && args.half_factors) store_half(args, row, kv * group * HD + at, result);
    }
  }
}

#define ENTRY(NAME, HD, RANKS, DEPTH, ONE)                                                                             \
  extern "C" __global__ void __launch_bounds__(THREADS) attention_step_d##HD##_##NAME(const __grid_constant__ Args args) { \
    attend<HD, RANKS, DEPTH, ONE>(args);                                                                             \
  }
ENTRY(one, 64, 8, 2, true)
ENTRY(one, 128, 8, 2, true)
// Rings of 192 KiB where heads have 128 dims, of 128 KiB where they have 64.
#define ENTRIES(RANKS)                     \
  ENTRY(r##RANKS, 64, RANKS, 4, false)     \
  ENTRY(r##RANKS, 128, RANKS, 3, false)
ENTRIES(1)
ENTRIES(2)
ENTRIES(4)
ENTRIES(8)
