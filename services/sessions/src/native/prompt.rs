//! What the model is told before anything else.

use berth_rpc::lifecycle::SessionWork;

use super::tools::Tool;

/// System texts of a session, ours first, then the client's.
pub(crate) fn system(work: &SessionWork, tools: &[Tool]) -> Vec<String> {
    let folder = if work.workdir.is_empty() { "the working folder" } else { &work.workdir };
    let subject = if work.repo_url.is_empty() {
        format!("Your working folder is {folder}.")
    } else {
        format!("The repository {} is checked out in {folder}, your working folder.", work.repo_url)
    };
    let names: Vec<&str> = tools.iter().map(|tool| tool.name()).collect();
    let tools = if names.is_empty() {
        "You have no tools: answer from what you are told.".to_owned()
    } else {
        format!(
            "Your tools are: {}. Paths are relative to the working folder, and commands start there.",
            names.join(", ")
        )
    };
    let ours = format!(
        "You are a software engineer working alone in a Linux sandbox made for this one task. {subject} {tools} \
         The sandbox has no network except to the repository's host and package registries, and it is deleted afterwards; \
         what remains is the difference you leave in the working folder, which is collected for you.\n\
         Look before you change, change as little as the task needs, and check your work by running it. \
         Nobody answers questions while you work, but a message of the user may reach you between tool calls: follow the newest. \
         When the task is done, reply without a tool call: say briefly what you changed and how you checked it. \
         If it cannot be done, say why."
    );
    let theirs = Some(work.system_prompt.clone()).filter(|text| !text.trim().is_empty());
    std::iter::once(ours).chain(theirs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_where_with_what_and_adds_the_clients_words() {
        let work = SessionWork {
            workdir: "/workspace/calc".into(),
            system_prompt: "Be terse.".into(),
            ..SessionWork::default()
        };
        let texts = system(&work, &[Tool::Read, Tool::Bash]);
        assert_eq!(texts.len(), 2);
        assert!(texts[0].contains("/workspace/calc") && texts[0].contains("read, bash"));
        assert_eq!(texts[1], "Be terse.");
        assert_eq!(system(&SessionWork::default(), &[]).len(), 1);
    }
}
