//! Body of `rows.wgsl`: layer norm of each row, (x - mean) / sqrt(variance + eps) * gamma + beta.
//! Reduction: the sum, then the sum of squared differences.
    var sums = EwF(0.0);
#expand for_each_vector()
        sums += {{value}};
    }
    let mean = group_sum(lanes_sum(sums)) / params.width;
    var sum_of_squares = EwF(0.0);
#expand for_each_vector()
        let x = {{value}} - mean;
        sum_of_squares += x * x;
    }
    let factor = 1.0 / sqrt(group_sum(lanes_sum(sum_of_squares)) / params.width + params.eps);
#expand for_each_vector()
        {{store}}(out_at + i, fma(({{value}} - mean) * factor, load_gamma(i), load_beta(i)));
    }
