//! Start of `main` for the reduction in `workgroup/reduce.wgsl`: keeps the thread's indices in private
//! variables. Expects `thread`, the local invocation index.
    group_thread = thread;
#if reduce_subgroups
    group_lane = lane;
    group_part = part;
    group_parts = parts;
#endif
