//! Copy of bytes at any offset. Element-wise: one thread writes one word of the destination, from two
//! words of the source.
//!
//! **Bindings.** `src`, `dst`: words. Bytes of `dst` outside the range keep their values.
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory bandwidth; not measured.
struct Params {
    // First byte of the source; first and end byte of the destination; words of the source.
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
    // The source byte of byte 0 of this word, plus 4: in the first word it may lie before the start of
    // the source.
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
