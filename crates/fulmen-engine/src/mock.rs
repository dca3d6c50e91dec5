//! A device without a model, for tests and examples.
//!
//! Its pages hold the tokens and positions that rows have written. The token after a row is a hash of all
//! pairs that the row finds through the page tables, so one wrong page, copy or table entry changes the
//! tokens that follow. [`MockModel::generate`] computes the same tokens without pages.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::driver::{StepDevice, Ticket};
use crate::error::{DeviceLost, LaunchError};
use crate::pages::{GroupKind, PageId, Transfer};
use crate::request::{Request, Stop};
use crate::scheduler::SchedulerConfig;
use crate::step::{LogitsRow, NextToken, RowFault, RowToken, Sampled, StepOutput, StepPlan, TokenMask};

/// The seed of a request, as its [`SamplingParams`](crate::SamplingParams). Without it the seed is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MockSampling {
    /// Another seed gives other tokens.
    pub seed: u64,
}

/// What a row has written at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    token: u32,
    position: u32,
    /// Whether a decode row has written it; only in batch-invariant mode.
    decoded: bool,
}

/// A cell that no row has written. Reading it gives a wrong token.
const STALE: Cell = Cell { token: u32::MAX, position: u32::MAX, decoded: true };

fn mix(hash: u64, value: u64) -> u64 {
    let mixed = (hash ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 29)
}

fn mix_cell(hash: u64, cell: Cell) -> u64 {
    let pair = u64::from(cell.token) << 32 | u64::from(cell.position);
    mix(hash, pair.wrapping_mul(2) + u64::from(cell.decoded))
}

/// The log-probability of a token after a row that sees what the hash says.
fn logprob(hash: u64, token: u32) -> f32 {
    (mix(hash, u64::from(token)) % 4096) as f32 / -256.0
}

/// What the mock computes.
#[derive(Clone, Debug)]
pub struct MockModel {
    vocabulary: u32,
    kinds: Vec<GroupKind>,
    batch_invariant: bool,
}

impl MockModel {
    /// The model of a configuration.
    pub fn new(config: &SchedulerConfig) -> MockModel {
        MockModel {
            vocabulary: config.vocabulary,
            kinds: config.groups.iter().map(|group| group.kind).collect(),
            batch_invariant: config.batch_invariant,
        }
    }

    /// The tokens of a request that runs alone. `mask` gives the allowed tokens after the tokens so far.
    pub fn generate(
        &self,
        prompt: &[u32],
        len: usize,
        seed: u64,
        stop: &Stop,
        mask: impl Fn(&[u32]) -> Option<TokenMask>,
    ) -> Vec<u32> {
        let cell = |position: usize, token: u32| Cell {
            token,
            position: position as u32,
            decoded: self.batch_invariant && position >= prompt.len(),
        };
        let mut cells: Vec<Cell> = prompt.iter().enumerate().map(|(at, &token)| cell(at, token)).collect();
        let mut generated = Vec::new();
        while cells.len() < len {
            let token = self.draw(self.hash(&cells, seed), mask(&generated).as_ref());
            cells.push(cell(cells.len(), token));
            generated.push(token);
            if stop.matches(&generated) {
                break;
            }
        }
        generated
    }

    /// The tokens of a prompt with their log-probabilities, but for the first, in a request that runs alone.
    pub fn prompt_logprobs(&self, prompt: &[u32], seed: u64) -> Vec<Sampled> {
        let cell = |(position, &token)| Cell { token, position, decoded: false };
        let cells: Vec<Cell> = (0..).zip(prompt).map(cell).collect();
        let score = |(at, &token): (usize, &u32)| {
            let before = cells.get(..at).filter(|before| !before.is_empty());
            let logprob = before.map(|before| logprob(self.hash(before, seed), token));
            Sampled { logprob, ..Sampled::token(token) }
        };
        prompt.iter().enumerate().map(score).collect()
    }

    /// A hash of all that the last of these rows sees in all groups.
    fn hash(&self, cells: &[Cell], seed: u64) -> u64 {
        let hashes = self.kinds.iter().map(|kind| {
            let seen = match *kind {
                GroupKind::Window { positions } => cells.len().saturating_sub(positions as usize),
                _ => 0,
            };
            cells[seen..].iter().fold(0, |hash, &cell| mix_cell(hash, cell))
        });
        hashes.fold(seed, mix)
    }

    /// The tokens of an unconstrained request that runs alone on a device with `context` positions.
    pub fn answer(&self, request: &Request, context: u32) -> Vec<u32> {
        let context = request.context.unwrap_or(u32::MAX).min(context) as usize;
        let len = (request.prompt.len() + request.max_tokens as usize).min(context);
        let seed = request.sampling.get::<MockSampling>().copied().unwrap_or_default().seed;
        self.generate(&request.prompt, len, seed, &request.stop, |_| None)
    }

    fn draw(&self, hash: u64, mask: Option<&TokenMask>) -> u32 {
        let first = (mix(hash, 1) % u64::from(self.vocabulary)) as u32;
        let tokens = (first..self.vocabulary).chain(0..first);
        tokens.into_iter().find(|&token| mask.is_none_or(|mask| mask.allows(token))).unwrap_or(first)
    }
}

/// Faults that a mock device makes.
#[derive(Clone, Debug, Default)]
pub struct MockFaults {
    /// Launches that fail, counted from 0.
    pub launches: BTreeMap<u64, LaunchError>,
    /// The device is lost when this step is waited for, counted from 0.
    pub lost_at: Option<u64>,
    /// A step with more rows is out of memory.
    pub max_rows: Option<u32>,
    /// The row with results that has this number fails, counted from 0.
    pub row: Option<u64>,
    /// This launch panics.
    pub panic_at: Option<u64>,
}

#[derive(Clone, Debug)]
struct Group {
    kind: GroupKind,
    /// `[page][position]`; the state of a recurrent group is in the first cell of a page.
    pages: Vec<Vec<Cell>>,
    host: Vec<Vec<Cell>>,
    /// `[slot][index]`
    tables: Vec<Vec<Option<PageId>>>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    seed: u64,
    last: Option<u32>,
}

/// A device that computes hashes. Steps run when they are launched; their results wait to be read.
pub struct MockDevice {
    model: MockModel,
    page_size: u32,
    groups: Vec<Group>,
    slots: Vec<Slot>,
    results: VecDeque<(Ticket, StepOutput)>,
    launches: u64,
    waits: u64,
    sampled: u64,
    busy: Duration,
    /// The faults to make.
    pub faults: MockFaults,
}

impl MockDevice {
    /// A device with the pages, slots and tables of a configuration.
    pub fn new(config: &SchedulerConfig) -> MockDevice {
        let page = vec![STALE; config.page_size as usize];
        let table = vec![None; config.context.div_ceil(config.page_size) as usize];
        let groups = config.groups.iter().map(|group| Group {
            kind: group.kind,
            pages: vec![page.clone(); group.pages as usize],
            host: vec![page.clone(); group.host_pages as usize],
            tables: vec![table.clone(); config.max_sequences as usize],
        });
        MockDevice {
            model: MockModel::new(config),
            page_size: config.page_size,
            groups: groups.collect(),
            slots: vec![Slot::default(); config.max_sequences as usize],
            results: VecDeque::new(),
            launches: 0,
            waits: 0,
            sampled: 0,
            busy: Duration::ZERO,
            faults: MockFaults::default(),
        }
    }

    /// Simulated time that all steps together have taken: 1 ms each and 10 µs a row.
    pub fn busy(&self) -> Duration {
        self.busy
    }

    /// Launches so far, counting those that failed.
    pub fn launches(&self) -> u64 {
        self.launches
    }

    fn run_prologue(&mut self, plan: &StepPlan) {
        for &transfer in &plan.prologue.transfers {
            match transfer {
                Transfer::Copy { group, from, to } => {
                    let pages = &mut self.groups[group as usize].pages;
                    pages[to.0 as usize] = pages[from.0 as usize].clone();
                }
                Transfer::SwapOut { group, from, to } => {
                    let group = &mut self.groups[group as usize];
                    group.host[to.0 as usize] = group.pages[from.0 as usize].clone();
                }
                Transfer::SwapIn { group, from, to } => {
                    let group = &mut self.groups[group as usize];
                    group.pages[to.0 as usize] = group.host[from.0 as usize].clone();
                }
            }
        }
        for setup in &plan.prologue.slots {
            let seed = setup.sampling.get::<MockSampling>().copied().unwrap_or_default().seed;
            self.slots[setup.slot as usize] = Slot { seed, last: None };
        }
        for edit in &plan.prologue.table {
            self.groups[edit.group as usize].tables[edit.slot as usize][edit.index as usize] = edit.page;
        }
    }

    /// Stores a row in all groups.
    fn store(&mut self, slot: u32, cell: Cell) {
        let size = self.page_size as usize;
        let position = cell.position as usize;
        for group in &mut self.groups {
            let table = &group.tables[slot as usize];
            if group.kind == GroupKind::Recurrent {
                let page = &mut group.pages[table[0].expect("a state has a page").0 as usize];
                let before = if position == 0 { 0 } else { unpack(page[0]) };
                page[0] = pack(mix_cell(before, cell));
            } else {
                let page = table[position / size].expect("a row has a page");
                group.pages[page.0 as usize][position % size] = cell;
            }
        }
    }

    /// A hash of all that a row sees in all groups.
    fn attend(&self, slot: u32, position: u32) -> u64 {
        let size = self.page_size as usize;
        let end = position as usize + 1;
        let hashes = self.groups.iter().map(|group| {
            let table = &group.tables[slot as usize];
            let cell = |position: usize| match table[position / size] {
                Some(page) => group.pages[page.0 as usize][position % size],
                None => STALE,
            };
            let start = match group.kind {
                GroupKind::Recurrent => {
                    return table[0].map_or(0, |page| unpack(group.pages[page.0 as usize][0]));
                }
                GroupKind::Window { positions } => end.saturating_sub(positions as usize),
                GroupKind::Full => 0,
            };
            (start..end).fold(0, |hash, position| mix_cell(hash, cell(position)))
        });
        hashes.fold(self.slots[slot as usize].seed, mix)
    }

    fn sample(&mut self, plan: &StepPlan, logits: &LogitsRow, output: &mut StepOutput) {
        let Some(row) = plan.rows.get(logits.row) else { return };
        let hash = self.attend(row.slot, row.position);
        let token = match logits.next {
            NextToken::Known(token) => token,
            NextToken::Sample => {
                let token = self.model.draw(hash, logits.mask.as_ref());
                self.slots[row.slot as usize].last = Some(token);
                token
            }
        };
        if self.faults.row == Some(self.sampled) {
            output.faults.push(RowFault { row: logits.row, reason: "a logit is NaN".to_owned() });
            // Whoever uses what this row has written gets other tokens.
            self.store(row.slot, Cell { position: row.position, ..STALE });
        }
        self.sampled += 1;
        // One value, which depends on all that the row sees, as the token does.
        let hidden = if logits.hidden { vec![token as f32] } else { Vec::new() };
        let logprob = logits.logprobs.map(|_| logprob(hash, token));
        output.sampled.push(Sampled { hidden, logprob, ..Sampled::token(token) });
    }

    /// Rows run one after the other, so that a row does not see the ones behind it.
    fn run_rows(&mut self, plan: &StepPlan) -> StepOutput {
        let mut output = StepOutput::default();
        let mut logits = plan.logits.iter().peekable();
        for (index, row) in (0..).zip(plan.rows.iter()) {
            let last = self.slots[row.slot as usize].last;
            let token = match row.token {
                RowToken::Known(token) => token,
                RowToken::Sampled => last.expect("a token was sampled for the slot"),
            };
            let decoded = self.model.batch_invariant && index < plan.decode_rows;
            self.store(row.slot, Cell { token, position: row.position, decoded });
            while let Some(logits) = logits.next_if(|logits| logits.row == index) {
                self.sample(plan, logits, &mut output);
            }
        }
        output
    }
}

fn pack(hash: u64) -> Cell {
    Cell { token: (hash >> 32) as u32, position: hash as u32, decoded: false }
}

fn unpack(cell: Cell) -> u64 {
    u64::from(cell.token) << 32 | u64::from(cell.position)
}

/// What a plan promises about its rows.
fn check(plan: &StepPlan, page_size: u32, batch_invariant: bool) -> Result<(), String> {
    let rows = &plan.rows;
    let sizes = [rows.tokens.len(), rows.positions.len(), rows.slots.len(), rows.sampling.len()];
    if sizes != [plan.bucket as usize; 4] || rows.active > plan.bucket {
        return Err(format!("arrays of {sizes:?} for {} rows in a bucket of {}", rows.active, plan.bucket));
    }
    let mut decoding: Vec<u32> = rows.slots[..plan.decode_rows as usize].to_vec();
    decoding.sort_unstable();
    if decoding.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("two decode rows of one slot".to_owned());
    }
    let mut next = plan.decode_rows;
    for chunk in &plan.chunks {
        if chunk.rows.start != next || chunk.rows.is_empty() {
            return Err(format!("the chunk {chunk:?} does not follow row {next}"));
        }
        if batch_invariant && chunk.position % page_size != 0 {
            return Err(format!("the chunk {chunk:?} does not begin at a page border"));
        }
        for (at, row) in chunk.rows.clone().filter_map(|row| rows.get(row)).enumerate() {
            if (row.slot, row.position) != (chunk.slot, chunk.position + at as u32) {
                return Err(format!("{row:?} is not in its place in {chunk:?}"));
            }
        }
        next = chunk.rows.end;
    }
    if next != rows.active {
        return Err(format!("{} rows, and the last chunk ends at {next}", rows.active));
    }
    Ok(())
}

impl StepDevice for MockDevice {
    fn launch(&mut self, plan: &StepPlan) -> Result<Ticket, LaunchError> {
        let number = self.launches;
        self.launches += 1;
        check(plan, self.page_size, self.model.batch_invariant)
            .map_err(|reason| DeviceLost(format!("step {}: {reason}", plan.number)))?;
        if let Some(error) = self.faults.launches.remove(&number) {
            return Err(error);
        }
        assert!(self.faults.panic_at != Some(number), "launch {number} was told to panic");
        if let Some(max) = self.faults.max_rows.filter(|&max| plan.rows.active > max) {
            return Err(LaunchError::OutOfMemory(format!("{} rows, at most {max} fit", plan.rows.active)));
        }
        self.busy += Duration::from_millis(1) + Duration::from_micros(10) * plan.rows.active;
        self.run_prologue(plan);
        let output = self.run_rows(plan);
        self.results.push_back((Ticket(number), output));
        Ok(Ticket(number))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, DeviceLost> {
        let number = self.waits;
        self.waits += 1;
        if self.faults.lost_at == Some(number) {
            return Err(DeviceLost(format!("step {number} was told to lose the device")));
        }
        match self.results.pop_front() {
            Some((oldest, output)) if oldest == ticket => Ok(output),
            other => {
                Err(DeviceLost(format!("{ticket:?} is waited for, the oldest is {:?}", other.map(|o| o.0))))
            }
        }
    }
}
