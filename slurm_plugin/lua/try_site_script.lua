-- Loads a job_submit.lua and calls its two functions, with a stub of slurmctld's `slurm` table and
-- a job that asks for nothing. Prints one line for each step: the step and its outcome.
local path = assert(arg[1])

local function say(what, outcome)
    print(what .. "\t" .. (tostring(outcome):gsub("%s+", " ")))
end

slurm = setmetatable({
    SUCCESS = 0,
    ERROR = -1,
    NO_VAL = 4294967294,
    NO_VAL16 = 65534,
    NO_VAL64 = 18446744073709551614,
    INFINITE = 4294967295,
    jobs = {},
    reservations = {},
    log_error = function(...) say("error", string.format(...)) end,
}, {
    -- Constants and functions of all Slurm versions.
    __index = function(_, name)
        if name:find("^[A-Z]") then
            return 2000
        end
        return function() end
    end,
})

for _, library in ipairs({ "socket", "socket.unix", "cjson" }) do
    local found, problem = pcall(require, library)
    say(library, found and "found" or problem)
end

-- Printed last: a script that ends Lua itself never gets there.
local function finish()
    say("trial", "ended")
end

local worked, outcome = pcall(dofile, path)
say("script", worked and "loaded" or outcome)
if not worked then
    return finish()
end

local job = { user_id = 0, partition = "-", job_id = 1 }
for _, name in ipairs({ "slurm_job_submit", "slurm_job_modify" }) do
    if type(_G[name]) ~= "function" then
        say(name, "is no function")
    elseif name == "slurm_job_submit" then
        say(name, select(2, pcall(_G[name], job, {}, 0)))
    else
        say(name, select(2, pcall(_G[name], job, job, {}, 0)))
    end
end
finish()
