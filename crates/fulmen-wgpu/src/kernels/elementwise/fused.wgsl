//! A whole graph of element-wise ops as one kernel. One thread computes one vector of 4 elements.
//!
//! **Bindings.** `in<n>`, the inputs in order, f32 or f16, each of full length or broadcast; `out<n>`,
//! the outputs. An output may overwrite an input in place, which is then bound once.
//!
//! `functions` is generated from the op table: `ew_program(inputs, scalars)`, which returns `EwF`, or a
//! struct with the members `o0`, `o1`, ... if there are several outputs.
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory bandwidth: 4.3 TB/s over 1 GiB on an H200.
#if f16
enable f16;
#endif
struct Params {
    // Whole vectors; vectors including a partial last one; elements of that one.
    whole: u32,
    vectors: u32,
    rest: u32,
#for b in 0..len(broadcast_inputs)
  #define n broadcast_inputs[b]
    n{{n}}: u32,
    at{{n}}: u32,
    row{{n}}: u32,
    last{{n}}: u32,
#endfor
#for j in 0..scalars
    s{{j}}: f32,
#endfor
}

#include "storage/lanes.wgsl"
{{accessors}}
{{functions}}
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    let i = number * {{threads}}u + thread;
    if (i < params.whole) {
        let r = {{call}};
#for o in 0..len(outputs)
        store_{{outputs[o]}}(i, r{{len(outputs) == 1 ? "" : ".o" + o}});
#endfor
    } else if (i < params.vectors) {
        let r = {{call}};
#for o in 0..len(outputs)
        store_part_{{outputs[o]}}(i, r{{len(outputs) == 1 ? "" : ".o" + o}}, params.rest);
#endfor
    }
}
