// penalize: a workgroup takes a row. Each token is counted in a table that has a place for every token, of which only the
// places of the row's tokens are used. Who takes a count away from its place first applies it.
struct Params {
    m: u32,
    n: u32,
    n_seqs: u32,
    capacity: u32,
}

{{buffers}}
{{report}}
fn is_finite(bits: u32) -> bool { return (bits & 0x7fffffffu) < 0x7f800000u; }

// What is wrong with a row: the code of a fault, the number and its limit.
fn fault_of(penalty: vec4<u32>, position: u32, sequence: u32) -> vec3<u32> {
    if (sequence >= params.n_seqs) { return vec3<u32>(FAULT_SEQUENCE, sequence, params.n_seqs); }
    if (position >= params.capacity) { return vec3<u32>(FAULT_POSITION, position, params.capacity); }
    let positive = penalty.x > 0u && penalty.x < 0x80000000u;
    if (!positive || !is_finite(penalty.x)) { return vec3<u32>(FAULT_REPEAT, penalty.x, 0u); }
    if (!is_finite(penalty.y)) { return vec3<u32>(FAULT_FREQUENCY, penalty.y, 0u); }
    if (!is_finite(penalty.z)) { return vec3<u32>(FAULT_PRESENCE, penalty.z, 0u); }
    return vec3<u32>(0u, 0u, 0u);
}

var<workgroup> wrong: atomic<u32>;

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x + grid.x * (group.y + grid.y * group.z);
    if (row >= params.m) { return; }
    let position = positions[row];
    let sequence = {{sequence}};
    let penalty = penalties[row];
    let told = fault_of(penalty, position, sequence);
    if (told.x != 0u && thread == 0u) { report(told.x, row, told.y, told.z); }
    let end = select(position + 1u, 0u, told.x != 0u);
    let start = end - min(end, penalty.w);
    let past = sequence * params.capacity;
    let at = row * params.n;
    if (thread == 0u) { atomicStore(&wrong, 0u); }
    workgroupBarrier();
    for (var i = start + thread; i < end; i += {{threads}}u) {
        let token = history[past + i];
        if (token < params.n) {
            atomicStore(&counts[at + token], 0u);
        } else {
            atomicStore(&wrong, 1u);
            report(FAULT_TOKEN, row, token, params.n);
        }
    }
    storageBarrier();
    workgroupBarrier();
    let stop = select(end, start, atomicLoad(&wrong) == 1u);
    for (var i = start + thread; i < stop; i += {{threads}}u) { atomicAdd(&counts[at + history[past + i]], 1u); }
    storageBarrier();
    workgroupBarrier();
    let repeat = bitcast<f32>(penalty.x);
    for (var i = start + thread; i < stop; i += {{threads}}u) {
        let token = history[past + i];
        let count = atomicExchange(&counts[at + token], 0u);
        if (count > 0u) {
            let logit = out[at + token];
            let scaled = select(logit * repeat, logit / repeat, logit > 0.0);
            out[at + token] = scaled - (f32(count) * bitcast<f32>(penalty.y) + bitcast<f32>(penalty.z));
        }
    }
}
