    var keys = EwU(0u);
    {{each}}
        keys = max(keys, order_key({{sign}}({{value}})));
    }
    let result = {{sign}}of_order_key(group_max_key(lanes_max_key(keys)));
    if (place == 0u && row < params.rows) {
        {{store}}(params.out_at + row, result);
    }
