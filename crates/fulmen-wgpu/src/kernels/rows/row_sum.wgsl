//! Body of `rows.wgsl`: the sum of each row. Reduction with one result per row.
    var sums = EwF(0.0);
#expand for_each_vector()
        sums += {{value}};
    }
    let result = group_sum(lanes_sum(sums));
    if (place == 0u && row < params.rows) {
        {{store}}(params.out_at + row, result);
    }
