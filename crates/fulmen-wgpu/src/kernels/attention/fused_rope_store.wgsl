//! Part of `main` in `decode.wgsl`: per-head RMS norm (a reduction), RoPE and KV store of the row,
//! fused before attention.
//!
//! One team of `rope_team` threads per head: teams 0 to `heads - 1` take the query heads, the next one
//! the key, the next one the value. Every workgroup rotates the query heads that it uses. The workgroup
//! whose chunk ends with the newest position stores key and value in the cache and then reads them back
//! with the rest of its chunk. With `keep_queries` the rotated queries go to the scratch buffer
//! `rotated` instead of `q`, which other workgroups may still be reading; `split_kv_reduce.wgsl` copies
//! them to where they belong.
#define first neox ? "i" : "2u * i"
#define second neox ? "i + " + pairs + "u" : "2u * i + 1u"
    group_thread = thread;
    let team_head = thread / {{rope_team}}u;
    let team_lane = thread % {{rope_team}}u;
    let head_at = team_head * {{head_dim}}u;
    var sum_of_squares = 0.0;
    if (team_head <= {{heads + 1}}u) {
        for (var d = team_lane; d < {{head_dim}}u; d += {{rope_team}}u) {
            var x = 0.0;
            if (team_head < {{heads}}u) {
                x = q[(first_head + team_head) * {{head_dim}}u + d];
            } else if (team_head == {{heads}}u) {
                x = k_new[kv_head * {{head_dim}}u + d];
            } else {
                x = v_new[kv_head * {{head_dim}}u + d];
            }
            new_heads[head_at + d] = x;
            sum_of_squares += x * x;
        }
    }
#if q_norm || k_norm
    let factor = 1.0 / sqrt(group_sum(sum_of_squares) / {{head_dim}}.0 + params.epsilon);
    if (team_head < {{heads}}u) {
        for (var d = team_lane; d < {{head_dim}}u; d += {{rope_team}}u) {
            new_heads[head_at + d] *= {{q_norm ? "factor * q_gamma[d]" : "1.0"}};
        }
    } else if (team_head == {{heads}}u) {
        for (var d = team_lane; d < {{head_dim}}u; d += {{rope_team}}u) {
            new_heads[head_at + d] *= {{k_norm ? "factor * k_gamma[d]" : "1.0"}};
        }
    }
#endif
    workgroupBarrier();
    if (team_head <= {{heads}}u) {
        for (var i = team_lane; i < {{pairs}}u; i += {{rope_team}}u) {
            let rotation = cos_sin(positions[row], i);
            let a = new_heads[head_at + {{first}}];
            let b = new_heads[head_at + {{second}}];
            new_heads[head_at + {{first}}] = a * rotation.x - b * rotation.y;
            new_heads[head_at + {{second}}] = a * rotation.y + b * rotation.x;
        }
    }
    workgroupBarrier();
    // The chunk that ends with the newest position stores it.
    if (begin < end && end == seen && page_entry(sequence, (seen - 1u) / {{page}}u) < params.n_pages) {
        let to = row_at(sequence, kv_head, seen - 1u) * {{vecs}}u;
        for (var u = thread; u < {{vecs}}u; u += {{threads}}u) {
            k[to + u] = encoded(new_heads4({{heads}}u * {{head_dim}}u + u * 4u));
            v[to + u] = encoded(new_heads4({{heads + 1}}u * {{head_dim}}u + u * 4u));
        }
    }
#if keep_queries
    if (chunk == 0u) {
        for (var i = thread; i < {{heads * head_dim}}u; i += {{threads}}u) {
            rotated[first_head * {{head_dim}}u + i] = new_heads[i];
        }
    }
#endif
    storageBarrier();
    workgroupBarrier();
