//! Helper: the types `EwF`, `EwI`, `EwU`, `EwB` of `lanes` (1 or 4) elements, as one thread computes
//! with them, and the reductions `lanes_sum`, `lanes_max` and `lanes_max_key` over their lanes.
#if lanes == 1
alias EwF = f32;
alias EwI = i32;
alias EwU = u32;
alias EwB = bool;
fn lanes_sum(v: EwF) -> f32 { return v; }
fn lanes_max(v: EwF) -> f32 { return v; }
fn lanes_max_key(v: EwU) -> u32 { return v; }
#else
alias EwF = vec4<f32>;
alias EwI = vec4<i32>;
alias EwU = vec4<u32>;
alias EwB = vec4<bool>;
fn lanes_sum(v: EwF) -> f32 { return (v.x + v.y) + (v.z + v.w); }
fn lanes_max(v: EwF) -> f32 { return max(max(v.x, v.y), max(v.z, v.w)); }
fn lanes_max_key(v: EwU) -> u32 { return max(max(v.x, v.y), max(v.z, v.w)); }
#endif
