//! Body of `rows.wgsl`: the maximum (or, with `sign` "-", the minimum) of each row. Reduction of
//! order-preserving integer keys, so that NaN wins; one result per row.
    var keys = EwU(0u);
#expand for_each_vector()
        keys = max(keys, order_key({{sign}}({{value}})));
    }
    let result = {{sign}}of_order_key(group_max_key(lanes_max_key(keys)));
    if (place == 0u && row < params.rows) {
        {{store}}(params.out_at + row, result);
    }
