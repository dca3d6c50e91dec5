//! Conversations whose form a chat template does not take.
//!
//! Coding tools write several system messages, some of them between others, and several messages of one
//! role in a row. Many templates raise an error for that, or leave out such a message without a word. A
//! conversation is rendered as it is wherever the template takes it; else its texts are moved, and none of
//! them is lost:
//!
//! 1. Leading system messages become one, later ones and neighbours of the same role are part of the user's
//!    messages around them.
//! 2. If the template has no system messages, their text stands before that of the first user message.

use super::{Message, TemplateError};

/// Between texts that become one message.
const BREAK: &str = "\n\n";

/// System messages that are looked for at most: each costs a rendering.
const MOST_CHECKED: usize = 8;

/// What `render` makes of a conversation in the first form that it takes. `text` is the text of its result.
pub(super) fn rendered<T>(
    messages: &[Message],
    render: impl Fn(&[Message]) -> Result<T, TemplateError>,
    text: impl Fn(&T) -> &str,
) -> Result<T, TemplateError> {
    let leaves_out = |messages: &[Message], rendered: &T| {
        let others = |others: &[Message]| render(others).map(|other| text(&other).to_owned());
        leaves_out(messages, text(rendered), others)
    };
    let given = match render(messages) {
        Ok(rendered) if !leaves_out(messages, &rendered) => return Ok(rendered),
        given => given,
    };
    let gathered = gathered(messages);
    let without_system = without_system(&gathered);
    for form in [gathered, without_system] {
        if form == messages {
            continue;
        }
        if let Ok(rendered) = render(&form)
            && !leaves_out(&form, &rendered)
        {
            return Ok(rendered);
        }
    }
    given
}

/// Whether a system message is not in the text that was made of a conversation. Templates change some texts:
/// only one without which the text would be the same is left out.
fn leaves_out(
    messages: &[Message],
    text: &str,
    render: impl Fn(&[Message]) -> Result<String, TemplateError>,
) -> bool {
    let missing =
        |&(_, message): &(usize, &Message)| is_system(message) && !text.contains(message.content.trim());
    messages.iter().enumerate().filter(missing).take(MOST_CHECKED).any(|(at, _)| {
        let mut others = messages.to_vec();
        others.remove(at);
        render(&others).is_ok_and(|other| other == text)
    })
}

fn is_system(message: &Message) -> bool {
    message.role == "system"
}

/// A conversation with at most one system message, at its beginning, and without neighbours of one role.
fn gathered(messages: &[Message]) -> Vec<Message> {
    let mut list: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        let mut message = message.clone();
        if is_system(&message) && list.iter().any(|earlier| !is_system(earlier)) {
            "user".clone_into(&mut message.role);
        }
        match list.last_mut().filter(|last| joins(last, &message)) {
            Some(last) => last.content = format!("{}{BREAK}{}", last.content, message.content),
            None => list.push(message),
        }
    }
    list
}

/// Whether a message can become part of the one before it. Calls and results of tools stay what they are.
fn joins(last: &Message, next: &Message) -> bool {
    let joined = last.fields.is_empty() || is_system(last);
    last.role == next.role && last.role != "tool" && joined && next.fields.is_empty()
}

/// The same with the system message as the beginning of the first user message.
fn without_system(gathered: &[Message]) -> Vec<Message> {
    let mut list = gathered.to_vec();
    if list.first().is_some_and(is_system) {
        let system = list.remove(0).content;
        match list.first_mut().filter(|first| first.role == "user") {
            Some(first) => first.content = format!("{system}{BREAK}{}", first.content),
            None => list.insert(0, Message::user(system)),
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::{ChatOptions, ChatTemplate, ToolSpec};
    use serde_json::json;

    fn prompt(template: &str, messages: &[(&str, &str)]) -> Result<String, TemplateError> {
        let template = ChatTemplate::new(template).unwrap();
        let messages: Vec<_> = messages.iter().map(|&(role, text)| Message::new(role, text)).collect();
        let options = ChatOptions { add_generation_prompt: false, ..ChatOptions::default() };
        rendered(&messages, |messages| template.render(messages, &options), String::as_str)
    }

    /// Takes any role.
    const ANY: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    /// Raises if roles do not alternate, as templates of Mistral and Gemma do.
    const ALTERNATE: &str = "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}\
        [system]{{ messages[0].content }}{% else %}{% set rest = messages %}{% endif %}\
        {% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
        {{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    /// Raises at system messages.
    const NO_SYSTEM: &str = "{% for m in messages %}{% if m.role == 'system' %}\
        {{ raise_exception('no system role') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    /// Leaves out all system messages but the first, as that of gpt-oss.
    const DEAF: &str = "{% for m in messages %}{% if m.role != 'system' or loop.first %}\
        [{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}";

    const TOOL_TURNS: [(&str, &str); 6] = [
        ("system", "one"),
        ("system", "two"),
        ("user", "hello"),
        ("system", "three"),
        ("assistant", "hi"),
        ("user", "more"),
    ];

    #[test]
    fn what_a_template_takes_stays_as_it_is() {
        let text = "[system]one[system]two[user]hello[system]three[assistant]hi[user]more";
        assert_eq!(prompt(ANY, &TOOL_TURNS).unwrap(), text);
    }

    #[test]
    fn roles_that_must_alternate_do() {
        let text = "[system]one\n\ntwo[user]hello\n\nthree[assistant]hi[user]more";
        assert_eq!(prompt(ALTERNATE, &TOOL_TURNS).unwrap(), text);
        let users = [("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d"), ("user", "e")];
        assert_eq!(prompt(ALTERNATE, &users).unwrap(), "[user]a\n\nb[assistant]c\n\nd[user]e");
    }

    #[test]
    fn no_system_message_is_lost_without_a_word() {
        let text = "[system]one\n\ntwo[user]hello\n\nthree[assistant]hi[user]more";
        assert_eq!(prompt(DEAF, &TOOL_TURNS).unwrap(), text);
    }

    #[test]
    fn a_template_without_system_messages_gets_their_text() {
        let text = "[user]one\n\ntwo\n\nhello\n\nthree[assistant]hi[user]more";
        assert_eq!(prompt(NO_SYSTEM, &TOOL_TURNS).unwrap(), text);
        assert_eq!(prompt(NO_SYSTEM, &[("system", "alone")]).unwrap(), "[user]alone");
    }

    #[test]
    fn a_text_that_a_template_changes_is_not_lost() {
        let flags =
            "{% for m in messages %}[{{ m.role }}]{{ m.content | replace('/think', '') }}{% endfor %}";
        let text = prompt(flags, &[("system", "/think twice"), ("user", "hello")]).unwrap();
        assert_eq!(text, "[system] twice[user]hello");
    }

    /// Models without tools are told of them by a system message, and of results by messages of the user.
    #[test]
    fn tools_reach_templates_without_system_messages() {
        let tokenizer = crate::template::tests::tokenizer();
        let template = ChatTemplate::new(NO_SYSTEM).unwrap();
        let tool = ToolSpec::new("time".to_owned(), None, None).unwrap();
        let call = json!([{ "id": "c", "function": { "name": "time", "arguments": {} } }]);
        let fields = vec![("tool_calls".to_owned(), call)];
        let messages = vec![
            Message::user("Time?"),
            Message { fields, ..Message::assistant("") },
            Message::new("tool", "12:00"),
            Message::user("And now?"),
        ];
        let options = ChatOptions::default();
        let (prompt, _) = template.prompt_with_tools(&tokenizer, messages, &[tool], options, false).unwrap();
        let text = prompt.text;
        assert!(text.starts_with("[user]You may call functions."), "{text}");
        assert_eq!(text.matches("[user]").count(), 2, "{text}");
        assert!(text.contains("Time?") && text.ends_with("And now?"), "{text}");
    }

    #[test]
    fn what_no_form_helps_is_the_template_s_error() {
        let error = prompt("{{ raise_exception('never') }}", &TOOL_TURNS).unwrap_err();
        assert!(error.to_string().contains("never"), "{error}");
    }
}
