// copy_bytes: each thread makes one word of the target.
struct Params {
    // The first byte of the source; the first of the target and the one behind its last; words of the source.
    from_at: u32,
    to_at: u32,
    end: u32,
    words: u32,
}


fn byte_mask(count: u32) -> u32 { return select((1u << (8u * count)) - 1u, 0xffffffffu, count >= 4u); }

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = (group.x + grid.x * (group.y + grid.y * group.z)) * {{threads}}u + thread;
    let word = params.to_at / 4u + number;
    let begin = word * 4u;
    if (begin >= params.end) { return; }
    // The bytes of this word that are copied.
    let first = select(0u, params.to_at - begin, params.to_at > begin);
    let last = min(4u, params.end - begin);
    // Where byte 0 of the word comes from; in the first word that may be before the source, so it is counted from 4 on.
    let source = begin + 4u + params.from_at - params.to_at;
    let at = source / 4u;
    let shift = 8u * (source % 4u);
    let low = src[min(max(at, 1u) - 1u, params.words - 1u)];
    let high = src[min(at, params.words - 1u)];
    var value = low;
    if (shift > 0u) { value = (low >> shift) | (high << (32u - shift)); }
    let mask = byte_mask(last) & ~byte_mask(first);
    if (mask == 0xffffffffu) {
        dst[word] = value;
    } else {
        dst[word] = (dst[word] & ~mask) | (value & mask);
    }
}
