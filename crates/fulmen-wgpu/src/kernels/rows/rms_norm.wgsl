//! Body of `rows.wgsl`: RMS norm of each row, x / sqrt(mean(x^2) + eps) * gamma. Reduction: sum of squares.
    var sum_of_squares = EwF(0.0);
#expand for_each_vector()
        let x = {{value}};
        sum_of_squares += x * x;
    }
    let factor = 1.0 / sqrt(group_sum(lanes_sum(sum_of_squares)) / params.width + params.eps);
#expand for_each_vector()
        {{store}}(out_at + i, {{value}} * factor * load_gamma(i));
    }
