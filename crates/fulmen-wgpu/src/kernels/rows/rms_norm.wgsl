    var squares = EwF(0.0);
    {{each}}
        let x = {{value}};
        squares += x * x;
    }
    let factor = 1.0 / sqrt(group_sum(lanes_sum(squares)) / params.width + params.eps);
    {{each}}
        {{store}}(out_at + i, {{value}} * factor * load_gamma(i));
    }
