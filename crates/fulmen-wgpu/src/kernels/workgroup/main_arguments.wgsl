//! Arguments of `main` that the reduction in `workgroup/reduce.wgsl` needs.
#if reduce_subgroups
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_id) part: u32,
    @builtin(num_subgroups) parts: u32,
#endif
