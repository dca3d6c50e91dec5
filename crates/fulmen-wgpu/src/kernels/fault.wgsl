//! Helper function: `report(code, row, value, limit)` writes a fault to the binding `fault`, four
//! atomic words. The first report wins. Call it from one thread per row; several do no harm.
//! The constants match `fulmen_core::fault`.
const FAULT_TOKEN = 1u;
const FAULT_POSITION = 2u;
const FAULT_SEQUENCE = 3u;
const FAULT_TEMPERATURE = 4u;
const FAULT_TOP_P = 5u;
const FAULT_MIN_P = 6u;
const FAULT_REPEAT = 7u;
const FAULT_FREQUENCY = 8u;
const FAULT_PRESENCE = 9u;
const FAULT_PAGE = 10u;
const FAULT_SLOT = 11u;
const FAULT_BIAS = 12u;
const FAULT_BIASES = 13u;
const FAULT_EXPERT = 14u;

fn report(code: u32, row: u32, value: u32, limit: u32) {
    loop {
        let claim = atomicCompareExchangeWeak(&fault[0], 0u, code);
        if (claim.exchanged) {
            atomicStore(&fault[1], row);
            atomicStore(&fault[2], value);
            atomicStore(&fault[3], limit);
        }
        // The exchange may fail although the word is 0: tried again.
        if (claim.exchanged || claim.old_value != 0u) { break; }
    }
}
