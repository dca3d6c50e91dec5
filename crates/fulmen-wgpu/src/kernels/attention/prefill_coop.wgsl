//! Attention for prefill on tensor cores: tiled flash attention with 16 x 16 cooperative matrices, f16
//! inputs and f32 accumulation.
//!
//! **Work partition.** One workgroup of 4 teams of 32 threads (subgroups, where `coop`) computes one
//! head of a tile of `rows` (64) query rows; each team has 16 of them. The queries stay in fragments
//! `q0..`, the output accumulates in fragments `o0..` of 16 x 16. Keys are processed in tiles of `keys`
//! (32):
//! 1. The next keys and values are prefetched from the cache into registers, the current ones are in `slab`.
//! 2. Scores: 2 fragments of 16 rows x 16 keys per team, stored to `scores`.
//! 3. Softmax: two threads per row, each with half of the keys (`side`), compute maximum, weights (f16)
//!    and sum.
//! 4. Weights x values accumulate into `o0..`.
//!
//! **Lazy rescaling.** Accumulators have to pass through workgroup memory to be rescaled, so a row
//! keeps its old maximum until the scores have risen by more than 8 (in powers of two): weights up to
//! 2^8 are as accurate as weights up to 1.
//!
//! Without cooperative matrices (`coop` false, for tests) a fragment is `array<f32, 8>` per thread:
//! eight values of row `lane / 2`, from column `lane % 2 * 8` on.
//!
//! **Bindings.** `q`, `out` [m][n_heads][head_dim] f32; `k`, `v`: an f16 cache as `vec4<f16>`, or q8_0 as in
//! `kv_reader.wgsl`, `pages` as in `kv_pages.wgsl`; `positions`, `sequences` [m]; `fault`. A tile of keys
//! lies in one page.
//!
//! **Preconditions.** `head_dim` is a multiple of 16 and at most 128; subgroups of exactly 32 where `coop`.
//!
//! **Bound** by the softmax and by loads, not by the tensor cores. Of 85 µs on an H200 (Qwen3-4B, 512 rows
//! after 512 positions): softmax 27, loading keys and values 13, rescaling 8, each of the two
//! matmuls 5 to 9. 0.8 ms per layer at 2048 rows of Qwen3-4B, where `prefill_tiled.wgsl` takes 2.8.
enable f16;
#if coop
enable wgpu_cooperative_matrix;
#endif
#define zero coop ? "coop_mat16x16<f32, C>()" : "array<f32, 8>()"
struct Params {
    capacity: u32,
    n_seqs: u32,
    n_pages: u32,
    m: u32,
    tiles: u32,
    groups: u32,
    scale: f32,
}

alias Val = vec4<f32>;
#include "attention/visible_keys.wgsl"
#include "attention/kv_pages.wgsl"
#if kv_type != "f16"
#include "attention/kv_reader.wgsl"
#endif
// Row strides in vectors: one or two more than a row has, to avoid bank conflicts between eight rows.
const LD = {{ld}}u;
const WLD = {{weights_ld}}u;
const SLD = {{scores_ld}}u;
// The stride for the half of the queries that is staged at once.
const QLD = {{q_ld}}u;
// All sizes are multiples of 16 bytes: fragments must start 16-byte aligned, and drivers place arrays
// back to back. Half of the queries; then the keys or the values of a tile.
var<workgroup> slab: array<vec4<f16>, {{slab}}>;
// Scores; or output fragments that are rescaled or stored; or values exchanged between the two threads
// of a row.
var<workgroup> scores: array<vec4<f32>, {{scores}}>;
var<workgroup> weights: array<vec4<f16>, {{weights}}>;
// The factor that rescales each row's output, and whether it differs from 1 for any row.
var<workgroup> factors: array<f32, {{rows}}>;
var<workgroup> changed: vec4<u32>;
#include "attention/tile_rows.wgsl"

@compute @workgroup_size({{threads}})
fn main(
#if coop
    @builtin(subgroup_id) team: u32,
    @builtin(subgroup_invocation_id) lane: u32,
#endif
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.groups) { return; }
#if coop
    let thread = team * 32u + lane;
#else
    let thread = local;
    let team = local / 32u;
    let lane = local % 32u;
#endif
    let head = number % {{n_heads}}u;
    let row0 = first_row(number);
    let kv_head = head / {{group}}u;
    stage_rows(row0, head, thread);
    // Each thread has one row (`mine`) and half of a key tile (`side`).
    let mine = team * 16u + lane / 2u;
    let side = lane % 2u;
    let own_row = min(row0 + mine, params.m - 1u);
    let query = (own_row * {{n_heads}}u + head) * {{vecs}}u;
    // The queries become f16, scaled by the power of two that scales the largest of the row near 2^13.
    var bits = vec4<u32>();
    for (var u = side; u < {{vecs}}u; u += 2u) {
        bits = max(bits, bitcast<vec4<u32>>(q[query + u]) & vec4<u32>(0x7fffffffu));
    }
    scores[thread].x = bitcast<f32>(max(max(bits.x, bits.y), max(bits.z, bits.w)));
    workgroupBarrier();
    let most = max(bitcast<u32>(scores[thread].x), bitcast<u32>(scores[thread ^ 1u].x));
    let not_finite = most >= 0x7f800000u;
    let exponent = clamp(127 + 13 - (i32(most >> 23u) - 127), 13, 227);
    let power = bitcast<f32>(u32(exponent) << 23u);
    // Undoes that power of two, and makes scores exponents of two for exp2.
    let scale = bitcast<f32>(u32(254 - exponent) << 23u) * params.scale * 1.44269504;
    // Stage the team's queries through the slab, half of the head at a time.
#if !coop
    var own_q: array<vec4<f16>, {{vecs}}>;
#endif
#for half in 0..2
  #define first half * q_fragments
  #define count min(q_fragments, fragments - first)
  #if count > 0
    for (var u = side; u < {{4 * count}}u; u += 2u) {
        slab[mine * QLD + u] =
            vec4<f16>(select(q[query + {{4 * first}}u + u] * power, vec4<f32>(), not_finite));
    }
    workgroupBarrier();
    #if coop
      #for i in 0..count
    let q{{first + i}} = coopLoadT<coop_mat16x16<f16, A>>(&slab[team * 16u * QLD + {{4 * i}}u], QLD);
      #endfor
    #else
    for (var u = 0u; u < {{4 * count}}u; u += 1u) { own_q[{{4 * first}}u + u] = slab[mine * QLD + u]; }
    #endif
    workgroupBarrier();
  #endif
#endfor
    var top = -3.4028234e38;
    var sum = 0.0;
#for i in 0..fragments
    var o{{i}} = {{zero}};
#endfor
    // The vectors of a key tile (and of a value tile) that this thread loads, and the registers they
    // are prefetched to.
#for l in 0..loads
    let key{{l}} = (thread + {{l * threads}}u) / {{vecs}}u;
    let vec_{{l}} = (thread + {{l * threads}}u) % {{vecs}}u;
#endfor
#for l in 0..loads
    var k{{l}} = vec4<f16>();
    var v{{l}} = vec4<f16>();
#endfor
#macro prefetch(name)
  #for l in 0..loads
    #if kv_type == "f16"
            {{name}}{{l}} = {{name}}[(next_row + min(key{{l}}, limit - 1u - next)) * {{vecs}}u + vec_{{l}}];
    #else
            {{name}}{{l}} = vec4<f16>(load_{{name}}(next_row + min(key{{l}}, limit - 1u - next), vec_{{l}}));
    #endif
  #endfor
#endmacro
#macro store_to_slab(name)
  #for l in 0..loads
        slab[key{{l}} * LD + vec_{{l}}] = {{name}}{{l}};
  #endfor
#endmacro
// One fragment to the left (at = 0) or right (at = 1) half of the team's rows of `scores`, and back.
#macro store_fragment(name, at)
  #if coop
            coopStoreT({{name}}, &scores[team * 16u * SLD + {{4 * at}}u], SLD);
  #else
            for (var e = 0u; e < 8u; e += 1u) {
                scores[mine * SLD + {{4 * at}}u + lane % 2u * 2u + e / 4u][e % 4u] = {{name}}[e];
            }
  #endif
#endmacro
#macro load_fragment(name, at)
  #if coop
            {{name}} = coopLoadT<coop_mat16x16<f32, C>>(&scores[team * 16u * SLD + {{4 * at}}u], SLD);
  #else
            for (var e = 0u; e < 8u; e += 1u) {
                {{name}}[e] = scores[mine * SLD + {{4 * at}}u + lane % 2u * 2u + e / 4u][e % 4u];
            }
  #endif
#endmacro
#include "attention/tile_sequences.wgsl"
#if sequences
    let seen = select(0u, row_seen[mine], row_sequence[mine] == sequence);
#else
    let seen = row_seen[mine];
#endif
    if (limit > 0u) {
        let next = 0u;
        let next_row = row_at(sequence, kv_head, next);
#expand prefetch("k")
#expand prefetch("v")
    }
    for (var start = 0u; start < limit; start += {{keys}}u) {
#expand store_to_slab("k")
        if (thread == 0u) { changed = vec4<u32>(); }
        workgroupBarrier();
        let next = start + {{keys}}u;
        let next_row = row_at(sequence, kv_head, next);
        if (head == 0u && thread == 0u) { report_invalid_pages(row0, sequence, start, start); }
        if (next < limit) {
#expand prefetch("k")
        }
        {
            // Scores: 16 rows x {{keys}} keys per team.
#for j in 0..key_fragments
            var s{{j}} = {{zero}};
#endfor
#if coop
  #for i in 0..fragments
    #for j in 0..key_fragments
            let b{{i}}_{{j}} = coopLoad<coop_mat16x16<f16, B>>(&slab[{{16 * j}}u * LD + {{4 * i}}u], LD);
            s{{j}} = coopMultiplyAdd(q{{i}}, b{{i}}_{{j}}, s{{j}});
    #endfor
  #endfor
#else
  #for j in 0..key_fragments
            for (var e = 0u; e < 8u; e += 1u) {
                for (var u = 0u; u < {{vecs}}u; u += 1u) {
                    let x = vec4<f32>(slab[({{16 * j}}u + lane % 2u * 8u + e) * LD + u]);
                    s{{j}}[e] += dot(vec4<f32>(own_q[u]), x);
                }
            }
  #endfor
#endif
#for j in 0..key_fragments
#expand store_fragment("s" + j, j)
#endfor
        }
        workgroupBarrier();
        // How many keys of the thread's half the row sees.
        let first = start + side * {{keys / 2}}u;
        let left = max(seen, first) - first;
#for i in 0..keys / 8
        let visible{{i}} =
            vec4<u32>({{4 * i}}u, {{4 * i + 1}}u, {{4 * i + 2}}u, {{4 * i + 3}}u) < vec4<u32>(left);
        let score{{i}} = select(
            vec4<f32>(-3.4028234e38),
            scores[mine * SLD + side * {{keys / 8}}u + {{i}}u] * scale,
            visible{{i}},
        );
#endfor
        var highest = vec4<f32>(-3.4028234e38);
#for i in 0..keys / 8
        highest = max(highest, score{{i}});
#endfor
#if !coop
        // Without shuffles each thread also scans the other half of its row.
        for (var i = 0u; i < {{keys / 2}}u; i += 1u) {
            let seen_there = start + (1u - side) * {{keys / 2}}u + i < seen;
            let score = scores[mine * SLD + (1u - side) * {{keys / 8}}u + i / 4u][i % 4u] * scale;
            highest.x = max(highest.x, select(-3.4028234e38, score, seen_there));
        }
#endif
        let own_top = max(max(highest.x, highest.y), max(highest.z, highest.w));
#if coop
        let new_top = max(own_top, subgroupShuffleXor(own_top, 1u));
#else
        let new_top = own_top;
#endif
        // Lazy rescaling, see above.
        let shrinks = new_top > top + 8.0;
        let factor = select(1.0, exp2(top - new_top), shrinks);
        top = select(top, new_top, shrinks);
        sum *= factor;
        if (shrinks) { changed.x = 1u; }
        if (side == 0u) { factors[mine] = factor; }
#for i in 0..keys / 8
        let weight{{i}} = vec4<f16>(select(vec4<f32>(), exp2(score{{i}} - top), visible{{i}}));
        weights[mine * WLD + side * {{keys / 8}}u + {{i}}u] = weight{{i}};
        sum += dot(vec4<f32>(weight{{i}}), vec4<f32>(1.0));
#endfor
#expand store_to_slab("v")
        if (next < limit) {
#expand prefetch("v")
        }
        if (workgroupUniformLoad(&changed).x != 0u) {
            // Rescale the output fragments, two at a time, through `scores`.
            let less = factors[mine];
#for pair in 0..(fragments + 1) / 2
  #define count min(2, fragments - 2 * pair)
  #for i in 0..count
#expand store_fragment("o" + (2 * pair + i), i)
  #endfor
            workgroupBarrier();
  #for i in 0..4
            scores[mine * SLD + side * 4u + {{i}}u] *= less;
  #endfor
            workgroupBarrier();
  #for i in 0..count
#expand load_fragment("o" + (2 * pair + i), i)
  #endfor
            workgroupBarrier();
#endfor
        }
        {
            // Output: weights x values.
#if coop
  #for k in 0..key_fragments
            let w{{k}} = coopLoadT<coop_mat16x16<f16, A>>(&weights[team * 16u * WLD + {{4 * k}}u], WLD);
    #for j in 0..fragments
            let y{{k}}_{{j}} = coopLoadT<coop_mat16x16<f16, B>>(&slab[{{16 * k}}u * LD + {{4 * j}}u], LD);
            o{{j}} = coopMultiplyAdd(w{{k}}, y{{k}}_{{j}}, o{{j}});
    #endfor
  #endfor
#else
  #for j in 0..fragments
            for (var e = 0u; e < 8u; e += 1u) {
                let column = {{16 * j}}u + lane % 2u * 8u + e;
                for (var key = 0u; key < {{keys}}u; key += 1u) {
                    o{{j}}[e] += f32(weights[mine * WLD + key / 4u][key % 4u])
                        * f32(slab[key * LD + column / 4u][column % 4u]);
                }
            }
  #endfor
#endif
        }
        workgroupBarrier();
    }
#if sequences
    }
#endif
    scores[thread].x = sum;
    workgroupBarrier();
    let total = scores[thread].x + scores[thread ^ 1u].x;
    workgroupBarrier();
    let inverse_sum = select(1.0 / total, 0.0, total == 0.0);
    // Store the output, two fragments at a time. A row with a query that is not finite becomes NaN.
    let there = row0 + mine < params.m;
    let nan = select(vec4<u32>(), vec4<u32>(0x7fc00000u), not_finite && row_seen[mine] > 0u);
    let to = ((row0 + mine) * {{n_heads}}u + head) * {{vecs}}u + side * 4u;
#for pair in 0..(fragments + 1) / 2
  #define count min(2, fragments - 2 * pair)
  #for i in 0..count
#expand store_fragment("o" + (2 * pair + i), i)
  #endfor
    workgroupBarrier();
    if (there{{count == 2 ? "" : " && side == 0u"}}) {
  #for i in 0..4
        out[to + {{8 * pair + i}}u] = bitcast<vec4<f32>>(
            bitcast<vec4<u32>>(scores[mine * SLD + side * 4u + {{i}}u] * inverse_sum) | nan,
        );
  #endfor
    }
    workgroupBarrier();
#endfor
}
