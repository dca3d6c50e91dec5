    let factor = 1.0 / sqrt(group_sum(squares) / {{head_dim}}.0 + params.epsilon);
    if (fresh_head < {{heads}}u) {
        for (var d = fresh_lane; d < {{head_dim}}u; d += {{team}}u) { fresh[fresh_at + d] *= {{q_gain}}; }
    } else if (fresh_head == {{heads}}u) {
        for (var d = fresh_lane; d < {{head_dim}}u; d += {{team}}u) { fresh[fresh_at + d] *= {{k_gain}}; }
    }
