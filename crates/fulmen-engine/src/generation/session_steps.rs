//! The steps of a session, on the devices of its model one after the other.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use fulmen_core::clock::Instant;
use fulmen_core::sampling::NO_TOKEN;
use fulmen_core::{Backend, BackendError, CacheUse};
use fulmen_model::ModelError;
use fulmen_model::arch::{GraphSpec, Results, Step, names};

use super::mask::Adjustments;
use super::model::Device;
use super::sequence::Sequence;
use super::session::{Session, StepLaunches, address};
use super::session_stage::StateCopy;
use super::step_cache::Timing;

/// The devices of a model, locked.
type Devices<'a> = Vec<MutexGuard<'a, Device>>;

/// The rows of a step with tokens from the host: a prefill chunk, or a token of each of several sequences.
struct Chunk<'a> {
    tokens: &'a [u32],
    positions: &'a [u32],
    sequences: &'a [u32],
    output_rows: &'a [u32],
    results: Option<Results>,
}

impl Session {
    /// Decodes sequences that have exactly one token not yet in the KV cache, on this rank.
    pub(super) fn decode_on_rank(
        &mut self,
        sequences: &[u32],
        steps: usize,
    ) -> Result<Vec<Vec<u32>>, ModelError> {
        if self.is_cancelled() {
            return Err(ModelError::Cancelled);
        }
        let start = Instant::now();
        let Adjustments { penalize, mask, candidates } = self.adjustments(sequences);
        let rows = sequences.len() as u32;
        let spec = self.options.spec(Step::Decode { rows, penalize, mask, candidates });
        let shared = Arc::clone(&self.shared);
        let mut devices = shared.devices();
        let last = devices.len() - 1;
        if self.rows.as_deref() != Some(sequences) {
            self.write_rows(devices[last].as_mut(), sequences)?;
        }
        sequences.iter().try_for_each(|&sequence| self.restore_state(&mut devices, sequence))?;
        let lengths: Vec<u64> =
            sequences.iter().map(|&s| self.sequences[s as usize].tokens.len() as u64).collect();
        // The tokens stay on one device until all steps have run. The first of several needs them each time.
        let read_each = last > 0 || steps == 1;
        let mut drawn = vec![Vec::new(); sequences.len()];
        let (mut launches, mut host) = (None, Duration::ZERO);
        for at in 0..steps as u64 {
            if last > 0 {
                self.write_earlier_rows(&mut devices[..last], sequences, &drawn)?;
            }
            let cache_use = CacheUse::of_steps(lengths.iter().map(|length| length + at));
            let (step, tokens) = self.decode_step(&mut devices, &spec, cache_use, read_each)?;
            host += step.host;
            launches = Some(step);
            drawn.iter_mut().zip(&tokens).for_each(|(drawn, &token)| drawn.push(token));
            if tokens.contains(&NO_TOKEN) {
                break;
            }
        }
        if !read_each {
            drawn = self.read_history(devices[last].as_mut(), sequences, steps)?;
        }
        if self.profile.is_none() {
            let host = host / u32::try_from(steps).unwrap_or(u32::MAX).max(1);
            self.launches = launches.map(|launches| StepLaunches { host, ..launches });
        }
        shared.check_weights()?;
        self.check_drawn(sequences, &drawn)?;
        for (&sequence, tokens) in sequences.iter().zip(&drawn) {
            tokens.iter().for_each(|&token| self.sequences[sequence as usize].drew(token));
        }
        self.rows = Some(sequences.to_vec());
        if let Some(profile) = &mut self.profile {
            profile.wall += start.elapsed();
        }
        Ok(drawn)
    }

    /// Copies the recurrent state that a sequence goes back to, if it does.
    fn restore_state(&mut self, devices: &mut Devices<'_>, sequence: u32) -> Result<(), BackendError> {
        let Some(place) = self.sequences[sequence as usize].take_restore() else { return Ok(()) };
        self.copy_states(devices, sequence, place, StateCopy::Restore)
    }

    /// Keeps the recurrent state behind the tokens that were fed, if it is wanted.
    fn keep_state(&mut self, devices: &mut Devices<'_>, sequence: u32) -> Result<(), BackendError> {
        let Some(place) = self.sequences[sequence as usize].place_to_keep() else { return Ok(()) };
        self.copy_states(devices, sequence, place, StateCopy::Keep)?;
        self.sequences[sequence as usize].kept(place);
        Ok(())
    }

    fn copy_states(
        &self,
        devices: &mut Devices<'_>,
        sequence: u32,
        place: usize,
        direction: StateCopy,
    ) -> Result<(), BackendError> {
        let mut stages = self.stages.iter().zip(devices);
        stages.try_for_each(|(part, device)| part.copy_states(device.as_mut(), sequence, place, direction))
    }

    /// Runs a decode step on every device; with `read`, returns the drawn tokens.
    fn decode_step(
        &mut self,
        devices: &mut Devices<'_>,
        spec: &GraphSpec,
        cache_use: CacheUse,
        read: bool,
    ) -> Result<(StepLaunches, Vec<u32>), ModelError> {
        let Session { shared, stages, profile, options, .. } = self;
        let (start, mut launches, mut kernels) = (Instant::now(), 0, 0);
        let mut hidden = Vec::new();
        for (number, (part, device)) in stages.iter_mut().zip(devices).enumerate() {
            let (device, stage) = (device.as_mut(), shared.placement.stages()[number]);
            let (spec, key) = (spec.on(stage), (shared.as_ref(), number));
            let compiled = part.steps.get(key, device, &spec, &part.bindings, options.eager)?;
            if !stage.is_first() {
                compiled.bound.write(device, names::STAGE_INPUT, &hidden)?;
            }
            let timing = profile.as_mut().map(|profile| Timing { profile, cache_use });
            let launched = compiled.run(device, timing)?;
            launches += launched;
            kernels += compiled.captured_kernels(device).unwrap_or(launched);
            if !stage.is_last() {
                hidden = compiled.bound.read(device, names::STAGE_OUTPUT)?;
                continue;
            }
            let launches = StepLaunches { launches, kernels, host: start.elapsed() };
            let drawn = if read { compiled.bound.read_u32(device, names::DRAWN)? } else { Vec::new() };
            return Ok((launches, drawn));
        }
        Err(ModelError::Without { what: "stage that computes results" })
    }

    /// Writes the rows of a decode step to all devices but the last, which has advanced them itself. `drawn`
    /// are tokens behind those of the sequences.
    fn write_earlier_rows(
        &self,
        devices: &mut [MutexGuard<'_, Device>],
        sequences: &[u32],
        drawn: &[Vec<u32>],
    ) -> Result<(), ModelError> {
        let mut rows: [Vec<u32>; 3] = Default::default();
        for (&number, drawn) in sequences.iter().zip(drawn) {
            let tokens = &self.sequences[number as usize].tokens;
            let token = drawn.last().or(tokens.last()).copied().unwrap_or(0);
            let position = (tokens.len() + drawn.len()).saturating_sub(1) as u32;
            rows.iter_mut().zip([token, position, number]).for_each(|(words, word)| words.push(word));
        }
        for (part, device) in self.stages.iter().zip(devices) {
            part.write_rows(device.as_mut(), &rows)?;
        }
        Ok(())
    }

    /// Writes the state of these sequences, which have one token to feed each, to the rows of the last
    /// device.
    fn write_rows(&mut self, device: &mut dyn Backend, sequences: &[u32]) -> Result<(), ModelError> {
        let rows = sequences.iter().map(|&s| (s, &self.sequences[s as usize]));
        let mut words: [Vec<u32>; 3] = Default::default();
        let (mut sampling, mut penalties) = (Vec::new(), Vec::new());
        for (number, sequence) in rows {
            // During a prefill the step itself feeds the last token, at the same position.
            let at = sequence.tokens.len().saturating_sub(1);
            let row = [sequence.tokens.get(at).copied().unwrap_or(0), at as u32, number];
            words.iter_mut().zip(row).for_each(|(words, word)| words.push(word));
            sampling.push(sequence.sampling.state(sequence.draws, number));
            penalties.push(sequence.sampling.penalties());
        }
        if let Some(part) = self.stages.last() {
            part.write_rows(device, &words)?;
        }
        let bindings = self.bindings();
        device.write(address(bindings, names::STEP_SAMPLING)?, bytemuck::cast_slice(&sampling))?;
        device.write(address(bindings, names::STEP_PENALTIES)?, bytemuck::cast_slice(&penalties))?;
        self.write_masks(device, sequences)
    }

    /// Feeds the pending tokens up to `end` in one step, on this rank. `results` says what to return, and
    /// from which row on.
    pub(super) fn run_chunk_on_rank(
        &mut self,
        sequence: u32,
        end: usize,
        results: Option<(Results, usize)>,
    ) -> Result<Vec<f32>, ModelError> {
        let shared = Arc::clone(&self.shared);
        let mut devices = shared.devices();
        let last = devices.len() - 1;
        let Sequence { tokens, fed, .. } = &self.sequences[sequence as usize];
        let (fed, tokens) = (*fed, tokens[*fed..end].to_vec());
        let rows = tokens.len() as u32;
        let history = address(self.bindings(), names::HISTORY)?;
        let first = sequence as usize * self.options.context as usize + fed;
        devices[last].write(history + 4 * first as u64, bytemuck::cast_slice(&tokens))?;
        if matches!(results, Some((Results::Draw { .. }, _))) {
            self.write_rows(devices[last].as_mut(), &[sequence])?;
        }
        let output_rows: Vec<u32> = results.map_or(Vec::new(), |(_, first)| (first as u32..rows).collect());
        let results = results.map(|(results, _)| results);
        let positions: Vec<u32> = (fed as u32..end as u32).collect();
        let chunk = Chunk {
            tokens: &tokens,
            positions: &positions,
            sequences: &vec![sequence; tokens.len()],
            output_rows: &output_rows,
            results,
        };
        let cache_use = CacheUse::of_rows(fed as u64, end as u64);
        let done = self.restore_state(&mut devices, sequence).map_err(ModelError::from);
        let done = done.and_then(|()| self.prefill_step(&mut devices, &chunk, cache_use));
        let done = done.and_then(|done| shared.check_weights().map(|()| done));
        let (output, drawn) = done.inspect_err(|_| self.sequences[sequence as usize].failed())?;
        if let Some(token) = drawn {
            self.check_drawn(&[sequence], &[vec![token]])?;
            self.sequences[sequence as usize].drew(token);
            self.rows = Some(vec![sequence]);
        }
        self.sequences[sequence as usize].fed = end;
        let kept = self.keep_state(&mut devices, sequence);
        kept.inspect_err(|_| self.sequences[sequence as usize].failed())?;
        Ok(output)
    }

    /// Feeds the pending token of each of several sequences in one step, on this rank, and returns the logits
    /// after each of them.
    pub(super) fn run_batch_on_rank(&mut self, sequences: &[u32]) -> Result<Vec<f32>, ModelError> {
        let shared = Arc::clone(&self.shared);
        let mut devices = shared.devices();
        let last = devices.len() - 1;
        let history = address(self.bindings(), names::HISTORY)?;
        let (mut tokens, mut positions) = (Vec::new(), Vec::new());
        for &sequence in sequences {
            let Sequence { tokens: all, fed, .. } = &self.sequences[sequence as usize];
            let at = sequence as usize * self.options.context as usize + fed;
            devices[last].write(history + 4 * at as u64, bytemuck::bytes_of(&all[*fed]))?;
            tokens.push(all[*fed]);
            positions.push(*fed as u32);
        }
        sequences.iter().try_for_each(|&sequence| self.restore_state(&mut devices, sequence))?;
        let output_rows: Vec<u32> = (0..sequences.len() as u32).collect();
        let chunk = Chunk {
            tokens: &tokens,
            positions: &positions,
            sequences,
            output_rows: &output_rows,
            results: Some(Results::Logits),
        };
        let cache_use = CacheUse::of_steps(positions.iter().map(|&at| u64::from(at) + 1));
        let (logits, _) = self.prefill_step(&mut devices, &chunk, cache_use)?;
        shared.check_weights()?;
        sequences.iter().for_each(|&sequence| self.sequences[sequence as usize].fed += 1);
        Ok(logits)
    }

    /// Runs a chunk on every device and returns its results: values, or a drawn token.
    fn prefill_step(
        &mut self,
        devices: &mut Devices<'_>,
        chunk: &Chunk<'_>,
        cache_use: CacheUse,
    ) -> Result<(Vec<f32>, Option<u32>), ModelError> {
        let Session { shared, stages, profile, options, cancel, .. } = self;
        let &Chunk { tokens, positions, sequences, output_rows, results } = chunk;
        let rows = tokens.len() as u32;
        let outputs = results.map(|results| (output_rows.len() as u32, results));
        let spec = options.spec(Step::Prefill { rows, results: outputs });
        let mut hidden = Vec::new();
        for (number, (part, device)) in stages.iter_mut().zip(devices).enumerate() {
            let (device, stage) = (device.as_mut(), shared.placement.stages()[number]);
            let (spec, key) = (spec.on(stage), (shared.as_ref(), number));
            let compiled = part.steps.get(key, device, &spec, &part.bindings, options.eager)?;
            let bound = &compiled.bound;
            match stage.is_first() {
                true => bound.write_u32(device, names::TOKENS, tokens)?,
                false => bound.write(device, names::STAGE_INPUT, &hidden)?,
            }
            bound.write_u32(device, names::POSITIONS, positions)?;
            if options.sequences > 1 {
                bound.write_u32(device, names::SEQUENCES, sequences)?;
            }
            if stage.is_last() && results.is_some() {
                bound.write_u32(device, names::OUTPUT_ROWS, output_rows)?;
            }
            // A chunk can take long on a slow device, so it can be canceled midway.
            let timing = profile.as_mut().map(|profile| Timing { profile, cache_use });
            if !compiled.run_unless(device, timing, cancel)? {
                return Err(ModelError::Cancelled);
            }
            if !stage.is_last() {
                hidden = bound.read(device, names::STAGE_OUTPUT)?;
                continue;
            }
            return Ok(match results {
                None => (Vec::new(), None),
                Some(Results::Hidden) => (bound.read_f32(device, names::HIDDEN)?, None),
                Some(Results::Logits) => (bound.read_f32(device, names::LOGITS)?, None),
                Some(Results::Draw { .. }) => {
                    (Vec::new(), bound.read_u32(device, names::DRAWN)?.first().copied())
                }
            });
        }
        Err(ModelError::Without { what: "stage that computes results" })
    }
}
