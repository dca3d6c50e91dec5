    // The lowest finite number instead of -inf keeps the differences below from being NaN where all are -inf.
    var top = EwF(-3.4028234e38);
    {{each}}
        top = max(top, {{value}});
    }
    let highest = group_max(lanes_max(top));
    var sums = EwF(0.0);
    {{each}}
        sums += ew_exp({{value}} - highest);
    }
    let sum = group_sum(lanes_sum(sums));
    let share = select(1.0 / sum, 0.0, sum == 0.0);
    {{each}}
        {{store}}(out_at + i, ew_exp({{value}} - highest) * share);
    }
