-- slicewise_line.lua: the connection on which slicewise.lua asks the daemon (it loads this file
-- from its own directory). One connection is kept between questions, and no question takes longer
-- than its time. After three questions without an answer a breaker opens, so that a daemon that is
-- away costs slurmctld next to nothing. All of this state is forgotten when slurmctld reads its
-- script again.

local cjson = require "cjson"
local socket = require "socket"
local unix = require "socket.unix"

local M = {}

local FAILURES = 3
local FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5
-- Codes that concern one question only: its user must not open the breaker for all others.
local ABOUT_ONE = { ["SW-WIRE"] = true, ["SW-INTERNAL"] = true }
local ACTIONS = { pass = true, admit = true, refuse = true }

local connection
local failures, pause_s, asks_again_s = 0, 0, 0

local function close()
    if connection then
        connection:close()
        connection = nil
    end
end

-- Makes a function that returns how much of a question's time is left, in seconds, and never more
-- than it returned before: the clock may be set back.
local function stopwatch(timeout_s)
    local deadline_s, left_s = socket.gettime() + timeout_s, timeout_s
    return function()
        left_s = math.max(math.min(left_s, deadline_s - socket.gettime()), 0)
        return left_s
    end
end

-- Bounds the next operation: "t" by the clock, "b" each single wait in it by itself.
local function limit(stream, left_s)
    stream:settimeout(left_s, "t")
    stream:settimeout(left_s, "b")
end

-- Whether the connection is idle: it has no unread bytes, and the daemon has not closed it.
local function is_quiet()
    limit(connection, 0)
    local _, problem = connection:receive(1)
    return problem == "timeout"
end

local function connect(path, left_s)
    local stream = unix.stream()
    limit(stream, left_s)
    local worked, problem = stream:connect(path)
    if worked then
        connection = stream
    else
        stream:close()
    end
    return worked, problem
end

local function exchange(text, path, left)
    local worked, problem = connection, nil
    if not worked then
        worked, problem = connect(path, left())
    end
    if worked then
        limit(connection, left())
        worked, problem = connection:send(text)
    end
    if not worked then
        return nil, problem
    end
    limit(connection, left())
    return connection:receive("*l")
end

-- The daemon's line. A connection that the daemon closes while it is asked is replaced once.
local function line_for(text, path, timeout_s)
    local left = stopwatch(timeout_s)
    if connection and not is_quiet() then
        close()
    end
    local was_kept = connection ~= nil
    local line, problem = exchange(text, path, left)
    if line or not was_kept or problem == "timeout" then
        return line, problem
    end
    close()
    return exchange(text, path, left)
end

local function answer_of(line, token)
    local is_json, answer = pcall(cjson.decode, line)
    -- cjson ends the text at a NUL.
    if not is_json or type(answer) ~= "table" or line:find("%z") then
        return nil, "what is no message"
    elseif not ACTIONS[answer.action] then
        return nil, tostring(answer.code or "an answer without an action")
    end
    local tag = answer.tag
    if type(tag) == "string" and not tag:find(" token=" .. token .. " ", 1, true) then
        return nil, "an answer to another question"
    elseif answer.action == "admit" and type(tag) ~= "string" then
        return nil, "an admission without a tag"
    end
    return answer
end

local function question_and_answer(question, path, timeout_s)
    local line, problem = line_for(cjson.encode(question) .. "\n", path, timeout_s)
    if not line then
        return nil, problem
    end
    return answer_of(line, question.token)
end

-- Whether the breaker is open. If more than the whole pause is left, the clock was set back.
local function is_open()
    local left_s = asks_again_s - socket.gettime()
    return failures >= FAILURES and left_s > 0 and left_s <= pause_s
end

local function count_failure()
    failures = failures + 1
    if failures == FAILURES then
        pause_s = FIRST_PAUSE_S
        slurm.log_info("slicewise: no answer %d times, asking again in %g s", failures, pause_s)
    elseif failures > FAILURES then
        pause_s = math.min(2 * pause_s, LONGEST_PAUSE_S)
    end
    asks_again_s = socket.gettime() + pause_s
end

local function count_answer()
    if failures >= FAILURES then
        slurm.log_info("slicewise: the daemon answers again")
    end
    failures = 0
end

--- The answer to a question, a table with an `action`; else nil and the reason, or nil alone while
-- the breaker is open and the daemon was not asked. Takes `timeout_s` at most, and never raises an
-- error.
function M.ask(question, path, timeout_s)
    if is_open() then
        return nil
    end
    local worked, answer, problem = pcall(question_and_answer, question, path, timeout_s)
    if worked and answer then
        count_answer()
        return answer
    end
    -- A late answer must not be read as the answer to another question.
    close()
    problem = tostring(worked and problem or answer)
    if not ABOUT_ONE[problem] then
        count_failure()
    end
    return nil, problem
end

return M
