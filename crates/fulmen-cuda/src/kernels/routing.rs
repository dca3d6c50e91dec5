//! How the experts of a row are chosen and weighed (`routing.cuh`).

use fulmen_core::{RouteCall, RouterScores};

use crate::layout::{DevicePtr, kernel_args};

const SOFTMAX: u32 = 0;
const SIGMOID: u32 = 1;
const SELECTED_SOFTMAX: u32 = 2;

kernel_args! {
    file: "routing.cuh";
    constants: [SOFTMAX, SIGMOID, SELECTED_SOFTMAX];

    #[derive(Debug)]
    pub(super) struct RouteRule {
        bias: DevicePtr,
        n_experts: u32,
        top_k: u32,
        scores: u32,
        renormalize: u32,
        scale: f32,
        first: u32,
        held: u32,
        groups: u32,
        groups_used: u32,
        unused: u32,
    }
}

impl RouteRule {
    pub(super) fn new(call: &RouteCall) -> RouteRule {
        let route = call.route;
        RouteRule {
            bias: call.bias.unwrap_or(0),
            n_experts: call.n_experts,
            top_k: route.top,
            scores: match route.scores {
                RouterScores::Softmax => SOFTMAX,
                RouterScores::Sigmoid => SIGMOID,
                RouterScores::SelectedSoftmax => SELECTED_SOFTMAX,
            },
            renormalize: route.renormalize.into(),
            scale: route.scale,
            first: call.held().first,
            held: call.held().count,
            groups: route.groups.map_or(0, |groups| groups.count),
            groups_used: route.groups.map_or(0, |groups| groups.used),
            unused: 0,
        }
    }
}
