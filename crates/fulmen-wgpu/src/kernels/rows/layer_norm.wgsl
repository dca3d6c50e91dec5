    var sums = EwF(0.0);
    {{each}}
        sums += {{value}};
    }
    let mean = group_sum(lanes_sum(sums)) / params.width;
    var squares = EwF(0.0);
    {{each}}
        let x = {{value}} - mean;
        squares += x * x;
    }
    let factor = 1.0 / sqrt(group_sum(lanes_sum(squares)) / params.width + params.eps);
    {{each}}
        {{store}}(out_at + i, fma(({{value}} - mean) * factor, load_gamma(i), load_beta(i)));
    }
