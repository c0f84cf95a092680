//! Which turn of the script answers a request: a pure function of both, so that retries and other workers agree.

use super::request::{Message, Role};
use super::script::{Script, Turn};

/// The place in the script that answers a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice<'s> {
    /// Index into the script's conversations.
    pub(super) conversation: usize,
    /// Number of assistant messages since the text that started the conversation.
    pub(super) turn: usize,
    /// The scripted reply; `None` past the last one.
    pub(super) reply: Option<&'s Turn>,
}

/// The conversation whose `when` matches the newest user text that any matches, else the first without `when`,
/// counted from the first user text. `None`: nothing in the script fits.
pub(super) fn choose<'s>(script: &'s Script, messages: &[Message]) -> Option<Choice<'s>> {
    let (conversation, started_at) = newest_match(script, messages).or_else(|| unconditional(script, messages))?;
    let turn = messages[started_at..].iter().filter(|message| message.role == Role::Assistant).count();
    Some(Choice { conversation, turn, reply: script.conversations[conversation].turns.get(turn) })
}

fn newest_match(script: &Script, messages: &[Message]) -> Option<(usize, usize)> {
    let texts = messages
        .iter()
        .enumerate()
        .rev()
        .filter(|(_, message)| message.role == Role::User)
        .flat_map(|(index, message)| message.texts().into_iter().rev().map(move |text| (index, text)));
    for (index, text) in texts {
        let matching = script.conversations.iter().position(|conversation| {
            conversation.when.as_ref().is_some_and(|when| text.contains(&when.prompt_contains))
        });
        if let Some(conversation) = matching {
            return Some((conversation, index));
        }
    }
    None
}

fn unconditional(script: &Script, messages: &[Message]) -> Option<(usize, usize)> {
    let conversation = script.conversations.iter().position(|conversation| conversation.when.is_none())?;
    let first_text =
        messages.iter().position(|message| message.role == Role::User && !message.texts().is_empty()).unwrap_or(0);
    Some((conversation, first_text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn place(script: &Value, messages: Value) -> Option<(usize, usize, Option<String>)> {
        let script = Script::parse(&script.to_string()).unwrap();
        let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
        choose(&script, &messages)
            .map(|choice| (choice.conversation, choice.turn, choice.reply.and_then(|turn| turn.text.clone())))
    }

    #[test]
    fn the_newest_text_that_any_condition_matches_decides() {
        let script = json!({"conversations":[
            {"when":{"prompt_contains":"red"},"turns":[{"text":"r0"},{"text":"r1"}]},
            {"when":{"prompt_contains":"blue"},"turns":[{"text":"b0"}]},
            {"turns":[{"text":"d0"},{"text":"d1"}]}]});
        let user = |text: &str| json!({"role":"user","content":text});
        let said = json!({"role":"assistant","content":"x"});
        let reminder = json!({"role":"user","content":[
            {"type":"text","text":"<system-reminder>"},{"type":"text","text":"paint it blue"},{"type":"text","text":"more"}]});
        let result = json!({"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"blue"}]});
        let system = json!({"role":"system","content":"blue"});
        let cases = [
            (json!([user("red")]), (0, 0, Some("r0"))),
            (json!([user("red"), said, user("go on")]), (0, 1, Some("r1"))),
            (json!([user("red"), said, said]), (0, 2, None)),
            (json!([user("red"), said, user("blue")]), (1, 0, Some("b0"))),
            (json!([user("blue"), said, user("red"), said, user("fine")]), (0, 1, Some("r1"))),
            (json!([user("red and blue")]), (0, 0, Some("r0"))),
            (json!([user("red"), said, reminder]), (1, 0, Some("b0"))),
            (json!([user("red"), said, result]), (0, 1, Some("r1"))),
            (json!([user("red"), system]), (0, 0, Some("r0"))),
            (json!([user("green")]), (2, 0, Some("d0"))),
            (json!([system, user("green"), said, user("grey")]), (2, 1, Some("d1"))),
        ];
        for (messages, (conversation, turn, text)) in cases {
            let expected = Some((conversation, turn, text.map(str::to_owned)));
            assert_eq!(place(&script, messages.clone()), expected, "{messages}");
        }
    }

    #[test]
    fn nothing_fits_when_every_conversation_has_an_unmet_condition() {
        let script = json!({"conversations":[{"when":{"prompt_contains":"red"},"turns":[]}]});
        assert_eq!(place(&script, json!([{"role":"user","content":"blue"}])), None);
    }
}
