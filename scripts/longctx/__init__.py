"""Measure long-context LLM serving: TTFT and decode throughput against prompt length.

The modules, by what they know; a group uses those above it:

    lengths, errors, redact            '64Ki' and 65536, errors that a user can mend, secrets
    tls, hub                           certificates that clients trust; the Hugging Face token and cache
    terminal, console, say             lines on a terminal and in a log
    tables, journal                    the Parquet tables and their format, one point's finished requests on disk
    modelfields, quantisation          a model's config.json, read strictly; bytes per weight
    geometry, parts                    layers and their parts: KV bytes per token, states, parameters, FLOPs
    hybrids, families                  which of them each family of models has
    hardware, capacity, bounds         a GPU, how many tokens fit on it, what no server can beat on it
    limits                             the same for a run of which we have a summary or a table
    stats, forecast, plan              statistics; how long a prefill will take, which lengths fit, hours
    tokenfile, tokens, corpus          ids on disk, any model's tokenizer, source trees as one stream
    synthetic, prompt, validate        models made on the spot, prompts of exact length, their check
    rates, metrics, power              what chunks, a server's counters and the GPUs say
    server                             recipe, launchers, start, facts, contract, ownership and the reaper, stop
    images                             the container image that a launcher serves from
    schema, configsecrets, config      a campaign's configuration, what may not be in it, and what follows from it
    campaignplan, cluster              its plan, and what its jobs ask of a node
    style, kvfigure, plantext          the look of all figures, the plan as Figure 1 and as text
    body, connection, sse              one streaming request's bytes, both ways
    received, client                   that request: what came, and the whole of it
    reasons, judge                     what its row may claim, and why not
    checkpoints, points                prefills that go on; a point's record
    progress, status, live, watch      how far a prefill is, for a terminal, a file and whoever reads that
    warmup, kvlimit, outlook, request  proven warm-up, what did not fit, the forecast, one request as a row
    owner, measure                     whose job a measurement is, and the protocol
    resume                             what a run sets right before it starts, and its report afterwards
    cost, compare, summary             dollars, two runs side by side, a row per length
    gather                             everything that a campaign has on disk
    figures                            every figure but Figure 1
    views, details, story              what the reports say, as tables and sentences
    report, html                       Markdown and HTML
    cli                                the command `longctx`
"""

__version__ = "0.1.0"
