    var sums = EwF(0.0);
    {{each}}
        sums += {{value}};
    }
    let result = group_sum(lanes_sum(sums));
    if (place == 0u && row < params.rows) {
        {{store}}(params.out_at + row, result);
    }
