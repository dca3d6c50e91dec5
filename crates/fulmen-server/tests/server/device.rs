//! A device that writes given texts, and one that computes hashes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fulmen_engine::Sampling;
use fulmen_engine::mock::{MockDevice, MockSampling};
use fulmen_engine::step::{NextToken, Sampled, StepOutput, StepPlan};
use fulmen_engine::{DeviceLost, LaunchError, SamplingParams, SchedulerConfig, StepDevice, Ticket};

/// The text of a request: the script whose number is its seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScriptNumber(pub(crate) u64);

pub(crate) fn script_sampling(sampling: &Sampling, bias: &[(u32, f32)]) -> Result<SamplingParams, String> {
    if !bias.is_empty() {
        return Err("logit_bias is not supported by this device".to_owned());
    }
    Ok(SamplingParams::new(ScriptNumber(sampling.seed)))
}

pub(crate) fn mock_sampling(sampling: &Sampling, _: &[(u32, f32)]) -> Result<SamplingParams, String> {
    Ok(SamplingParams::new(MockSampling { seed: sampling.seed }))
}

/// Writes the tokens of a script, then the last token for ever.
pub(crate) struct ScriptDevice {
    pub(crate) scripts: Arc<[Vec<u32>]>,
    /// Time of a step.
    pub(crate) step: Duration,
    /// By slot: the script, and the length of the prompt.
    slots: Vec<(usize, usize)>,
    results: VecDeque<(Ticket, StepOutput)>,
    launches: u64,
}

impl ScriptDevice {
    pub(crate) fn new(config: &SchedulerConfig, scripts: Arc<[Vec<u32>]>, step: Duration) -> ScriptDevice {
        let slots = vec![(0, 0); config.max_sequences as usize];
        ScriptDevice { scripts, step, slots, results: VecDeque::new(), launches: 0 }
    }
}

/// A token of a prompt, whose log-probability tells the position before it.
fn known(token: u32, position: u32, top: u8) -> Sampled {
    let top = (0..u32::from(top)).map(|other| (other, -1.0 - other as f32)).collect();
    Sampled { logprob: Some(-0.25 * (position + 1) as f32), top, ..Sampled::token(token) }
}

impl StepDevice for ScriptDevice {
    fn launch(&mut self, plan: &StepPlan) -> Result<Ticket, LaunchError> {
        for setup in &plan.prologue.slots {
            let script = setup.sampling.get::<ScriptNumber>().map_or(0, |number| number.0 as usize);
            self.slots[setup.slot as usize] = (script % self.scripts.len(), setup.history.len());
        }
        let sampled = plan.logits.iter().map(|logits| {
            let Some(row) = plan.rows.get(logits.row) else { return Sampled::token(0) };
            let (script, prompt) = self.slots[row.slot as usize];
            let script = &self.scripts[script];
            let at = (row.position as usize + 1).saturating_sub(prompt);
            let token = script[at.min(script.len() - 1)];
            if let NextToken::Known(token) = logits.next {
                return known(token, row.position, logits.logprobs.unwrap_or(0));
            }
            match logits.logprobs {
                // Tells the length of the prompt.
                None if logits.hidden => {
                    Sampled { hidden: vec![prompt as f32, 1.0], ..Sampled::token(token) }
                }
                None => Sampled::token(token),
                Some(top) => Sampled {
                    token,
                    logprob: Some(-0.5),
                    top: (0..u32::from(top)).map(|other| (token + other, -0.5 - other as f32)).collect(),
                    hidden: Vec::new(),
                },
            }
        });
        let output = StepOutput { sampled: sampled.collect(), faults: Vec::new() };
        let ticket = Ticket(self.launches);
        self.launches += 1;
        self.results.push_back((ticket, output));
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, DeviceLost> {
        std::thread::sleep(self.step);
        match self.results.pop_front() {
            Some((oldest, output)) if oldest == ticket => Ok(output),
            _ => Err(DeviceLost("steps are waited for in another order".to_owned())),
        }
    }
}

/// A mock device whose steps take time.
pub(crate) struct SlowMock(pub(crate) MockDevice, pub(crate) Duration);

impl StepDevice for SlowMock {
    fn launch(&mut self, plan: &StepPlan) -> Result<Ticket, LaunchError> {
        self.0.launch(plan)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, DeviceLost> {
        std::thread::sleep(self.1);
        self.0.wait(ticket)
    }
}
