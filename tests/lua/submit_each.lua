-- Reads values of one field of a submission from stdin, one a line in hexadecimal. For each it
-- prints what slicewise.lua makes of it without an answer (pass, held or refused) and, after a
-- blank, the question that it asked (JSON, or nothing).
local module_path, field = arg[1], arg[2]
local asked

package.loaded["socket.unix"] = {
    stream = function()
        return {
            settimeout = function() end,
            connect = function() return 1 end,
            send = function(_, line) asked = line return #line end,
            receive = function() return nil, "timeout" end,
            close = function() end,
        }
    end,
}
-- Each question comes so late after the one before that no breaker is open.
local socket = require "socket"
local now_s = 0
socket.gettime = function() now_s = now_s + 10 return now_s end
slurm = { SUCCESS = 0, log_info = function() end, log_user = function() end }

local module = dofile(module_path)
-- Jobs without GPUs go on: what is compared is how texts are read.
module.configure({ without_gpu = "allow" })
io.stdout:setvbuf("line")
for line in io.lines() do
    asked = "\n"
    local value = line:gsub("..", function(pair) return string.char(tonumber(pair, 16)) end)
    local job_desc = { [field] = value, account = "vision" }
    local code = module.job_submit(job_desc, {}, 1000)
    local became = code ~= 0 and "refused" or job_desc.priority == 0 and "held" or "pass"
    io.write(became, " ", asked)
end
