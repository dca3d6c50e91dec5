//! Sums over the lanes that share an output: the reduction at the end of every GEMV kernel.
//!
//! Each macro declares `total`, the sum of `value` over `1 << log2_lanes` neighboring threads; all lanes
//! get it.

//! In workgroup memory (`partial_sums`, one f32 a thread); every thread of the workgroup must come here.
#macro sum_by_memory(total, value, log2_lanes)
    partial_sums[local] = {{value}};
    workgroupBarrier();
#for level in 0..log2_lanes
  #define half 1 << (log2_lanes - 1 - level)
    if (lane < {{half}}u) { partial_sums[local] += partial_sums[local + {{half}}u]; }
    workgroupBarrier();
#endfor
    let {{total}} = partial_sums[local - lane];
    workgroupBarrier();
#endmacro
//! By shuffles; the lanes must lie in one subgroup.
#macro sum_by_shuffle(total, value, log2_lanes)
    var {{total}} = {{value}};
#for level in 0..log2_lanes
    {{total}} += subgroupShuffleXor({{total}}, {{1 << (log2_lanes - 1 - level)}}u);
#endfor
#endmacro
