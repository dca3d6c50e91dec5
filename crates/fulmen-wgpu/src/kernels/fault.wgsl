const FAULT_TOKEN = 1u;
const FAULT_POSITION = 2u;
const FAULT_SEQUENCE = 3u;
const FAULT_TEMPERATURE = 4u;
const FAULT_TOP_P = 5u;
const FAULT_MIN_P = 6u;
const FAULT_REPEAT = 7u;
const FAULT_FREQUENCY = 8u;
const FAULT_PRESENCE = 9u;

// Keeps the first report.
fn report(code: u32, row: u32, value: u32, limit: u32) {
    if (atomicCompareExchangeWeak(&fault[0], 0u, code).exchanged) {
        atomicStore(&fault[1], row);
        atomicStore(&fault[2], value);
        atomicStore(&fault[3], limit);
    }
}
