    // The query heads, then the key, then the value: a team takes one.
    group_thread = thread;
    let fresh_head = thread / {{team}}u;
    let fresh_lane = thread % {{team}}u;
    let fresh_at = fresh_head * {{head_dim}}u;
    var squares = 0.0;
    if (fresh_head <= {{value}}u) {
        for (var d = fresh_lane; d < {{head_dim}}u; d += {{team}}u) {
            var x = 0.0;
            if (fresh_head < {{heads}}u) {
                x = q[(first_head + fresh_head) * {{head_dim}}u + d];
            } else if (fresh_head == {{heads}}u) {
                x = k_new[kv_head * {{head_dim}}u + d];
            } else {
                x = v_new[kv_head * {{head_dim}}u + d];
            }
            fresh[fresh_at + d] = x;
            squares += x * x;
        }
    }
{{norm}}
    workgroupBarrier();
    if (fresh_head <= {{heads}}u) {
        for (var i = fresh_lane; i < {{pairs}}u; i += {{team}}u) {
            let turn = turn_of(positions[row], i);
            let a = fresh[fresh_at + {{first}}];
            let b = fresh[fresh_at + {{second}}];
            fresh[fresh_at + {{first}}] = a * turn.x - b * turn.y;
            fresh[fresh_at + {{second}}] = a * turn.y + b * turn.x;
        }
    }
    workgroupBarrier();
    // The part that ends with the newest position.
    if (begin < end && end == seen) {
        let to = (base + seen - 1u) * {{units}}u;
        for (var u = thread; u < {{units}}u; u += {{threads}}u) {
            k[to + u] = encoded(fresh4({{heads}}u * {{head_dim}}u + u * 4u));
            v[to + u] = encoded(fresh4({{value}}u * {{head_dim}}u + u * 4u));
        }
    }
{{keep}}
    storageBarrier();
    workgroupBarrier();
