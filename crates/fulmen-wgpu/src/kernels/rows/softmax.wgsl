//! Body of `rows.wgsl`: softmax of each row, exp(x - maximum) / sum. Reduction: row maximum and row sum.
    // Starting at the lowest finite number instead of -inf keeps x - maximum from being NaN in a row of -inf.
    var top = EwF(-3.4028234e38);
#expand for_each_vector()
        top = max(top, {{value}});
    }
    let highest = group_max(lanes_max(top));
    var sums = EwF(0.0);
#expand for_each_vector()
        sums += ew_exp({{value}} - highest);
    }
    let sum = group_sum(lanes_sum(sums));
    let inverse_sum = select(1.0 / sum, 0.0, sum == 0.0);
#expand for_each_vector()
        {{store}}(out_at + i, ew_exp({{value}} - highest) * inverse_sum);
    }
