//! Conversations: turns that are taken back, dropped or replaced.

use std::sync::Arc;

use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{Chat, GenerateOptions, LoadOptions, Model, SessionOptions};
use fulmen_model::ModelError;
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_model::template::{ChatTemplate, Message};

fn chat(context: u32) -> Chat {
    chat_with(context, ChatTemplate::named("chatml").unwrap())
}

fn chat_with(context: u32, template: ChatTemplate) -> Chat {
    let shape = ModelShape { layers: 1, ..ModelShape::preset("tiny-qwen3").unwrap() };
    let file = Synth::new(shape, "q8_0".parse().unwrap(), 5).file().unwrap();
    let session = SessionOptions { context, ..SessionOptions::default() };
    let options = LoadOptions { session, ..LoadOptions::default() };
    let model =
        Model::from_source(Arc::new(file), Box::new(CpuDispatcher::with_threads(2)), options).unwrap();
    Chat::with_template(model.session().unwrap(), template)
}

fn few(max_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens, stop_at_end: false, ..GenerateOptions::default() }
}

fn roles(chat: &Chat) -> Vec<&str> {
    chat.messages().iter().map(|message| message.role.as_str()).collect()
}

#[test]
fn a_turn_is_taken_back() {
    let mut chat = chat(256);
    assert_eq!(chat.undo(), None);
    chat.set_system(Some("Be brief."));
    assert_eq!(chat.undo(), None);
    let first = chat.say("Hello", &few(4), |_| ()).unwrap();
    chat.say("And now?", &few(4), |_| ()).unwrap();
    assert_eq!(chat.undo().as_deref(), Some("And now?"));
    assert_eq!(roles(&chat), ["system", "user", "assistant"]);
    assert_eq!(chat.undo().as_deref(), Some("Hello"));
    // The same message gets the same answer: nothing of the turns is left.
    assert_eq!(chat.say("Hello", &few(4), |_| ()).unwrap().tokens, first.tokens);
}

#[test]
fn the_system_prompt_is_replaced() {
    let mut chat = chat(256);
    assert_eq!(chat.system(), None);
    chat.set_messages(vec![Message::user("Hi"), Message::assistant("Hello")]);
    for text in [Some("Be brief."), Some("Be kind."), None] {
        chat.set_system(text);
        assert_eq!(chat.system(), text);
        assert_eq!(chat.messages().len(), 2 + usize::from(text.is_some()));
    }
}

/// Templates of Gemma refuse system messages, others leave them out without a word.
#[test]
fn a_system_prompt_reaches_templates_without_one() {
    const TURN: &str = "[{{ m.role }}]{{ m.content }}";
    let refuses = "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}";
    for head in [refuses.to_owned() + TURN, format!("{{% if m.role != 'system' %}}{TURN}{{% endif %}}")] {
        let template =
            || ChatTemplate::new(&format!("{{% for m in messages %}}{head}{{% endfor %}}")).unwrap();
        let mut with = chat_with(256, template());
        with.set_system(Some("Be brief."));
        let mut without = chat_with(256, template());
        without.set_system(None);
        let expected = without.prompt_with("Be brief.\n\nHello").unwrap();
        assert_eq!(with.prompt_with("Hello").unwrap(), expected, "{head}");
    }
}

#[test]
fn the_oldest_turns_make_room() {
    let mut chat = chat(128);
    chat.set_system(Some("Be brief."));
    let mut dropped = 0;
    for turn in 0..12 {
        let text = format!("Message number {turn}");
        dropped += chat.make_room(&text, 32).unwrap();
        let generated = chat.say(&text, &few(8), |_| ()).unwrap();
        assert!(generated.prompt_tokens + 32 <= 128);
        assert_eq!(chat.system(), Some("Be brief."));
        assert_eq!(chat.messages().last().unwrap().content, generated.text);
        assert_eq!(chat.messages().len(), 1 + 2 * (turn + 1 - dropped));
    }
    assert!((3..12).contains(&dropped), "{dropped}");
    // The newest turns are there.
    assert_eq!(chat.messages()[chat.messages().len() - 2].content, "Message number 11");
    let before = chat.messages().to_vec();
    // A message that cannot fit changes nothing, and is refused when it is sent.
    let long = "word ".repeat(200);
    assert_eq!(chat.make_room(&long, 32).unwrap(), 0);
    assert!(matches!(chat.say(&long, &few(8), |_| ()), Err(ModelError::PromptTooLong { .. })));
    assert_eq!(chat.messages(), before);
    // One that fits only without room for the whole answer drops everything else.
    let room = "word ".repeat(15);
    assert!(chat.make_room(&room, 128).unwrap() > 0);
    assert_eq!(roles(&chat), ["system"]);
    chat.say(&room, &few(2), |_| ()).unwrap();
}
